# SPDX-License-Identifier: Apache-2.0
"""Screens of all sizes in the browser of the tests, and what must be true of a page on each of them."""

import importlib.resources
import itertools

import pytest

SIZES = [(390, 844), (844, 390), (768, 1024), (1400, 900)]
EVERY_SCREEN = pytest.mark.parametrize(
    ("size", "theme"), list(itertools.product(SIZES, ("light", "dark"))), ids=lambda each: each if isinstance(each, str) else "x".join(map(str, each))
)

# Boxes of text and of what can be pressed that lie over each other by more than a pixel and a half, none being inside the other.
OVERLAPS = """
const boxes = [];
const shown = (rect, element) => {
  let { left, top, right, bottom } = rect;
  for (let at = element; at; at = at.parentElement) {
    const style = getComputedStyle(at);
    if (at === document.body || style.overflow === 'visible') continue;
    const box = at.getBoundingClientRect();
    [left, top, right, bottom] = [Math.max(left, box.left), Math.max(top, box.top), Math.min(right, box.right), Math.min(bottom, box.bottom)];
  }
  const stays = element.closest('tr')?.firstElementChild; // what is scrolled under it is not seen
  if (stays && !stays.contains(element) && getComputedStyle(stays).position === 'sticky') left = Math.max(left, stays.getBoundingClientRect().right);
  return right - left > 1 && bottom - top > 1 ? { left, top, right, bottom, element } : null;
};
for (const element of document.querySelectorAll('body *')) {
  if (element.closest('script, style, noscript, option, title, #tip') || !element.checkVisibility({ visibilityProperty: true })) continue;
  if (element.matches('button, select, input, canvas')) boxes.push(shown(element.getBoundingClientRect(), element));
  for (const node of element.childNodes) {
    if (node.nodeType !== Node.TEXT_NODE || !node.data.trim() || element.matches('select')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) boxes.push(shown(rect, element));
  }
}
const found = [];
const kept = boxes.filter(Boolean).sort((a, b) => a.top - b.top);
const name = (box) => `${box.element.tagName} ${box.element.id || box.element.className} "${box.element.textContent.slice(0, 30)}" ${[box.left, box.top, box.right, box.bottom].map(Math.round)}`;
kept.forEach((a, n) => {
  for (let m = n + 1; m < kept.length && kept[m].top < a.bottom - 1.5; ++m) {
    const b = kept[m];
    if (a.element === b.element || a.element.contains(b.element) || b.element.contains(a.element)) continue;
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5) found.push(`${name(a)} over ${name(b)}`);
  }
});
return found;
"""

SMALL_TARGETS = """
return [...document.querySelectorAll('button, select, input')].filter((e) => e.checkVisibility()).map((e) => [e, e.getBoundingClientRect()])
  .filter(([, box]) => box.width < 43.5 || box.height < 43.5)
  .map(([e, box]) => `${e.tagName} ${e.id || e.className} "${e.textContent.slice(0, 20)}" ${Math.round(box.width)} x ${Math.round(box.height)}`);
"""

# Remembers what is written and drawn on canvases, with where and how.
RECORD_CANVASES = """
window.written = [];
window.stroked = [];
const proto = CanvasRenderingContext2D.prototype;
const { fillText, stroke } = proto;
proto.fillText = function (text, x, y) {
  const at = this.getTransform().transformPoint(new DOMPoint(x, y));
  window.written.push({ text, x: at.x, y: at.y, isTurned: this.getTransform().b !== 0, size: parseFloat(/[\\d.]+px/.exec(this.font)[0]), width: this.measureText(text).width });
  return fillText.apply(this, arguments);
};
proto.stroke = function () {
  window.stroked.push({ alpha: this.globalAlpha, colour: this.strokeStyle, width: this.lineWidth });
  return stroke.apply(this, arguments);
};
"""


class Screen:
    """A tab as large as wanted; small ones are touched."""

    def __init__(self, tab):
        self.tab = tab

    def resize(self, size):
        width, height = size
        is_touched = width < 1200
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_touched)
        self.command("Emulation.setTouchEmulationEnabled", enabled=is_touched)
        return is_touched

    def command(self, name, **arguments):
        return self.tab.driver.execute_cdp_cmd(name, arguments)

    def go(self, address):
        """To another address of the page that is open, until it is drawn: faster than opening it again."""
        self.tab.driver.execute_async_script(
            "const done = arguments[arguments.length - 1]; location.hash = arguments[0];"
            "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))), 30)", address)  # fmt: skip

    def record_canvases(self):
        self.command("Page.addScriptToEvaluateOnNewDocument", source=RECORD_CANVASES)

    # Fingers, each a list of places it moves through.
    def touch(self, *fingers):
        for kind, moment in [("touchStart", 0), *[("touchMove", n) for n in range(1, len(fingers[0]))]]:
            points = [{"x": path[moment][0], "y": path[moment][1], "id": n} for n, path in enumerate(fingers)]
            self.command("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        self.command("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def assert_in_order(self, is_touched, where):
        run = self.tab.driver.execute_script
        overlaps = run(OVERLAPS)
        assert not overlaps, f"{where}: {overlaps[:3]}"
        assert run("return document.documentElement.scrollWidth") <= run("return innerWidth"), f"{where}: it scrolls sideways"
        if is_touched:
            small = run(SMALL_TARGETS)
            assert not small, f"{where}: {small[:5]}"

    def violations(self):
        """What axe-core finds wrong, in words."""
        pytest.importorskip("selenium_axe_python")
        axe = importlib.resources.files("selenium_axe_python").joinpath("axe-core/axe.min.js").read_text(encoding="utf-8")
        self.tab.driver.set_script_timeout(300)  # a large page on a busy machine
        if not self.tab.driver.execute_script("return Boolean(window.axe)"):
            self.tab.driver.execute_script(axe)
        found = self.tab.driver.execute_async_script("const done = arguments[arguments.length - 1]; axe.run(document, { resultTypes: ['violations'] }).then((all) => done(all.violations))")
        return [f"{each['id']}: {each['help']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}" for each in found for node in each["nodes"][:3]]
