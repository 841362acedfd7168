# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for the tests of the page: Debian's chromium and chromium-driver, driven by selenium."""

import json
import shutil
import time

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def start(width=1280, height=860):
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--force-device-scale-factor=1", f"--window-size={width},{height}"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(service=webdriver.ChromeService(DRIVER), options=options)


class Tab:
    """One page in the browser, and what it said and asked for."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, address=""):
        self.driver.get("about:blank")
        self.complaints(), self.requests()
        self.driver.get(path.as_uri() + address)
        self.until(lambda: self.count("#grid .thumb, #maps .frame canvas, #text span, #lines canvas"), "the page draws nothing")

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def until(self, condition, otherwise, seconds=20):
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, otherwise
            time.sleep(0.05)
        return found

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.until(lambda: self.all(selector), f"there is no {selector}")[0]

    def count(self, selector):
        return len(self.all(selector))

    def text(self, selector):
        return self.driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def address(self):
        return self.driver.execute_script("return location.hash")

    def choose(self, selector, value):
        self.driver.execute_script(
            "const box = document.querySelector(arguments[0]); box.value = arguments[1];"
            "box.dispatchEvent(new Event('change', { bubbles: true }));"
            "box.dispatchEvent(new Event('input', { bubbles: true }))", selector, value)  # fmt: skip

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def actions(self):
        from selenium.webdriver import ActionChains

        return ActionChains(self.driver, duration=20)

    # How many different colours a canvas has; none before it is there.
    def colours(self, selector, nth=0):
        return self.driver.execute_script(
            "const c = document.querySelectorAll(arguments[0])[arguments[1]];"
            "if (!c?.width || !c.height) return 0;"
            "const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
            "return new Set(d).size", selector, nth)  # fmt: skip
