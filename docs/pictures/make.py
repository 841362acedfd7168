#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of these documents, and playground.html, again: `make.py HEED [NAME...]`, HEED being the tool.

Needs the package, selenium, Pillow, Debian's chromium and chromium-driver, and for the two models tests/models/install.
"""

import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path += [str(HERE.parents[1] / "tests" / folder) for folder in ("python", "models")]

TEXT = "The cat that chased the mouse sat on the mat because it was tired, and the mouse went home."


def photograph(page, address, name, size=(1440, 900)):
    import browser

    driver = browser.start(*size)
    try:
        driver.get(page.as_uri() + address)
        driver.execute_script("document.querySelector('.hint button')?.click()")
        time.sleep(3)  # all pictures of all heads are drawn
        save(driver, name)
    finally:
        driver.quit()


def save(driver, name):
    """With a palette where it would be large: a third of the bytes."""
    import io

    import PIL.Image

    shown, path = PIL.Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB"), HERE / f"{name}.png"
    shown.save(path, optimize=True)
    if path.stat().st_size > 140_000:
        shown.quantize(256).save(path, optimize=True)


def watched(model, tokenizer, folder, title):
    import torch

    import heed
    import heed.transformers

    inputs = tokenizer(TEXT, return_tensors="pt")
    with torch.inference_mode(), heed.transformers.watch(model) as run:
        model(**inputs)
    page = folder / "model.html"
    heed.view(run, tokens=tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), title=title).save(page)
    return page


def on_a_telephone(page, address, name):
    import browser

    driver = browser.start(1400, 900)
    try:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True})
        driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        driver.get(page.as_uri() + address)
        time.sleep(2)
        save(driver, name)
    finally:
        driver.quit()


def phone(folder, tool):
    subprocess.run([tool, "view", "--quiet", "--title", "One sentence, six heads", "--out", folder / "page.html"], check=True)
    on_a_telephone(folder / "page.html", "#head=4&query=11&key=1", "phone")


def lines(folder, tool):
    subprocess.run([tool, "view", "--quiet", "--title", "One sentence, six heads", "--out", folder / "page.html"], check=True)
    photograph(folder / "page.html", "#head=4&view=lines&heads=all&most=1&query=11", "lines", (1200, 800))


def compare(folder, tool):
    subprocess.run([tool, "view", "--quiet", "--title", "One sentence, six heads", "--out", folder / "page.html"], check=True)
    photograph(folder / "page.html", "#run=1&head=3&compare=0&query=11&key=7&theme=dark", "compare", (1300, 780))


def overview(folder, tool):
    subprocess.run([tool, "view", "--quiet", "--title", "One sentence, six heads", "--out", folder / "page.html"], check=True)
    for name, theme in (("overview", "light"), ("overview-dark", "dark")):
        photograph(folder / "page.html", f"#theme={theme}&size=120", name, (840, 1195))


def example(folder, tool):
    subprocess.run([tool, "view", "--quiet", "--out", folder / "page.html", "--picture", HERE / "example.png"], check=True)


def playground(_, tool):
    page = HERE.parent / "playground.html"
    subprocess.run([tool, "view", "--quiet", "--play", "--out", page], check=True)
    photograph(page, "#source=0", "playground", (1400, 1010))


def minilm(folder, _):
    import conftest

    model = conftest.minilm.__wrapped__()
    photograph(watched(*model, folder, "all-MiniLM-L6-v2"), "#layer=2&head=5&view=text&query=12&key=12", "minilm", (1200, 760))


def smollm2(folder, _):
    import conftest

    model = conftest.smollm2.__wrapped__()
    photograph(watched(*model, folder, "SmolLM2-135M"), "", "smollm2", (1040, 900))


def main():
    tool, *names = sys.argv[1:]
    for name in names or ["overview", "phone", "lines", "compare", "example", "playground", "minilm", "smollm2"]:
        with tempfile.TemporaryDirectory() as folder:
            globals()[name](pathlib.Path(folder), pathlib.Path(tool).resolve())


if __name__ == "__main__":
    main()
