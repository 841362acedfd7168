// SPDX-License-Identifier: Apache-2.0
// What the colours mean, above whatever is shown: a bar with its ends, and what is not on it.
import { attention } from "./blobs.js";
import { pixelOfDifference, pixelOfStrength, strength } from "./colour.js";
import { byId, element } from "./dom.js";
import { state } from "./state.js";

const legend = byId("legend");

// Fills a row of 256 pixels.
const byPixel = (pixelAt) => (pen) => {
  const image = new ImageData(256, 1);
  new Uint32Array(image.data.buffer).set(Uint32Array.from({ length: 256 }, (_, n) => pixelAt(n)));
  pen.putImageData(image, 0, 0);
};

// As strong as lines are.
const byOpacity = (pen) => {
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(state.heads === "all" ? "--ink" : "--accent");
  for (let n = 0; n < 256; ++n) {
    pen.globalAlpha = opacityOf(lineStrength(n / 255));
    pen.fillRect(n, 0, 1, 1);
  }
};

// How strong a line is, for a weight of that strength: on a logarithmic scale small ones would else be as dark as large ones.
export const lineStrength = (t) => (state.scale === "log" ? t ** 3 : t);
export const opacityOf = (strong) => 0.12 + 0.88 * strong;

function filled(fill, name) {
  const canvas = document.createElement("canvas");
  canvas.width = 256;
  canvas.height = 1;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  fill(canvas.getContext("2d"));
  return canvas;
}

function colourBar(fill, ticks, name) {
  const canvas = filled(fill, `${name}, from ${ticks[0].text} to ${ticks[ticks.length - 1].text}`);
  const scale = element("div", "", "ticks");
  for (const { at, text } of ticks) {
    const tick = element("span", text);
    tick.style.left = `${100 * at}%`;
    tick.style.transform = `translateX(${-100 * at}%)`;
    scale.append(tick);
  }
  const made = element("div", "", "scale-bar");
  made.append(canvas, scale);
  return made;
}

const upper = (n) => String(n).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

// Round numbers along a bar that ends at `largest`, with room between them.
function ticksTo(largest, endText) {
  const end = { at: 1, text: endText || (largest === 1 ? "1" : largest.toPrecision(3)) };
  if (endText) return [{ at: 0, text: state.scale === "linear" ? "0" : "10⁻⁶" }, end];
  if (state.scale === "linear") return [{ at: 0, text: "0" }, { at: 0.5, text: (largest / 2).toPrecision(largest === 1 ? 1 : 2) }, end];
  const powers = [-6, -5, -4, -3, -2, -1].map((n) => ({ at: strength(10 ** n, "log", largest, attention.octaves), text: `10${upper(n)}` }));
  const kept = powers.filter(({ at }, n) => n === 0 || (n % 2 === 0 && at > 0.2 && at < 0.8));
  return [{ ...kept[0], at: 0 }, ...kept.slice(1), end];
}

// caption: what is coloured; largest: where the bar ends, and endText: in words, where that differs from picture to picture;
// isLines: it is opacity; hides and notFinite: whether anything is hidden, and not finite.
export function showLegend({ caption, largest = 1, endText = "", isLines = false, hides = false, notFinite = false }) {
  const dark = state.theme === "dark";
  const as = JSON.stringify([caption, largest, endText, isLines && state.heads, hides, notFinite, dark, state.scale]);
  if (legend.dataset.shown === as) return;
  legend.dataset.shown = as;
  const bar = colourBar(isLines ? byOpacity : byPixel((n) => pixelOfStrength(n / 255, dark)), ticksTo(largest, endText), caption);
  const swatches = element("p", "", "swatches");
  const swatch = (className, text) => {
    const made = element("span", "");
    made.append(element("span", "", `swatch ${className}`), text);
    swatches.append(made);
  };
  if (hides) swatch("hidden-cell", "hidden by a mask");
  if (notFinite) swatch("not-finite", "NaN or infinite");
  legend.replaceChildren(element("p", caption, "caption"), bar, ...(swatches.childElementCount ? [swatches] : []));
}

// The colours of differences between -largest and largest, in the line of their map's name.
export function showDifferences(box, largest) {
  const dark = state.theme === "dark";
  const as = `${largest} ${dark}`;
  if (box.dataset.shown === as) return;
  box.dataset.shown = as;
  const [least, most] = ["−", "+"].map((sign) => `${sign}${largest.toPrecision(3)}`);
  const bar = filled(byPixel((n) => pixelOfDifference((n - 128) / 127, 1, dark)), `Difference, from ${least} to ${most}`);
  box.replaceChildren(element("span", least), bar, element("span", most));
}
