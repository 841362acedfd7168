#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the viewer on a long input: how a page of one layer is made, how it opens, and how it pans in a headless browser.

By default 8,192 tokens and 32 heads, of which every query sees every key. Needs the tool, selenium, and Debian's chromium and
chromium-driver.

    build/python/bin/python bench/view_page.py build/release/bin/heed
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests/python"))

import browser

HEAD_DIM = 64

# Remembers when the first head among all is drawn, in milliseconds from the address.
FIRST_HEAD = """
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (...image) {
  if (this.canvas.closest(".thumb")) window.firstHead ??= performance.now();
  return put.apply(this, image);
};
"""

# Drags the map once a frame, to and fro along its diagonal, and counts the frames that were drawn.
PAN = """
const [seconds, done] = [arguments[0], arguments[1]];
const canvas = document.querySelector("#maps .frame canvas");
const box = canvas.getBoundingClientRect();
const send = (type, x, y) => canvas.dispatchEvent(
  new PointerEvent(type, {clientX: x, clientY: y, pointerId: 1, isPrimary: true, buttons: 1, bubbles: true}));
canvas.setPointerCapture = () => {};
const middle = [box.x + box.width / 2, box.y + box.height / 2];
send("pointerdown", ...middle);
const start = performance.now();
const times = [];
function frame(now) {
  times.push(now);
  const swing = 300 * Math.sin((now - start) / 400);
  send("pointermove", middle[0] + swing, middle[1] + swing);
  if (now - start < 1000 * seconds) requestAnimationFrame(frame);
  else { send("pointerup", ...middle); done(times); }
}
requestAnimationFrame(frame);
"""


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool", type=pathlib.Path, help="the heed tool")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--page", type=pathlib.Path, help="where the page goes; default: a folder that is removed")
    return parser.parse_args(arguments)


def make_page(options, folder, page):
    """Seconds, those of all processors together, bytes of memory at the peak, and bytes of the page."""
    width = options.heads * HEAD_DIM
    x = np.random.default_rng(0).normal(0, 1.5, (options.length, width)).astype(np.float32)
    np.save(folder / "x.npy", x)
    tool = options.tool.resolve()
    layer = ["--heads", options.heads, "--model-dim", width, "--length", 4, "--batch", 1, "--save-layer", folder / "w.safetensors"]
    subprocess.run([tool, "run", "--quiet", *map(str, layer)], check=True)
    view = ["--layer", folder / "w.safetensors", "--heads", options.heads, "--input", folder / "x.npy", "--threads", options.threads]
    view += ["--out", page, *(["--causal"] if options.causal else [])]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([tool, "view", "--quiet", *map(str, view)], check=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, busy, after.ru_maxrss * 1024, page.stat().st_size


def open_page(driver, tab, page):
    """Seconds until the first head is drawn, until the page is read whole, and until a head that was clicked is drawn; medians."""
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FIRST_HEAD})
    times = []
    for _ in range(7):
        driver.get("about:blank")
        driver.get(page.as_uri())
        tab.until(lambda: tab.count(".thumb") and tab.colours(".thumb canvas") > 5, "no head is drawn")
        times.append(driver.execute_script("return [window.firstHead, performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd]"))
    opened, whole = np.median(times, axis=0) / 1000
    start = time.perf_counter()
    tab.all(".thumb")[0].click()
    tab.until(lambda: tab.count("#maps .frame canvas") and tab.colours("#maps .frame canvas") > 8, "the map is blank")
    return opened, whole, time.perf_counter() - start


def pan(driver, tab, page, zoom):
    """Frames a second, and the longest time between two."""
    driver.get("about:blank")
    driver.get(f"{page.as_uri()}#head=1&zoom={zoom}&x=500&y=500")
    tab.until(lambda: tab.count("#maps .frame canvas") and tab.colours("#maps .frame canvas") > 8, "the map is blank")
    time.sleep(1)
    driver.set_script_timeout(60)
    times = np.diff(driver.execute_async_script(PAN, 4))
    return 1000 / times.mean(), times.max()


def main():
    options = options_of(sys.argv[1:])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        page = (options.page or folder / "page.html").resolve()
        seconds, busy, memory, size = make_page(options, folder, page)
        found = {"tokens": options.length, "heads": options.heads, "made_seconds": round(seconds, 1)}
        found |= {"processor_seconds": round(busy, 1), "peak_gigabytes": round(memory / 1e9, 2), "page_megabytes": round(size / 1e6, 1)}
        driver = browser.start(1280, 900)
        try:
            tab = browser.Tab(driver)
            opened, whole, clicked = open_page(driver, tab, page)
            found |= {"opened_seconds": round(opened, 2), "whole_seconds": round(whole, 2), "head_seconds": round(clicked, 2)}
            for zoom in (4, 16, 64):
                frames, longest = pan(driver, tab, page, zoom)
                found[f"pan_at_zoom_{zoom}"] = {"frames_per_second": round(frames, 1), "longest_milliseconds": round(longest)}
        finally:
            driver.quit()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
