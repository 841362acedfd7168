// SPDX-License-Identifier: Apache-2.0
// Colours of weights. Lightness alone tells more from less, so that every eye, and a grey print, sees the same order.

export const codes = { zero: 0, least: 1, one: 252, notFinite: 254, hidden: 255 };

function linearToByte(c) {
  const curved = c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, curved)));
}

// OKLCH, a space in which equal steps look equal, to the bytes of sRGB.
function oklch(lightness, chroma, degrees) {
  const a = chroma * Math.cos((degrees * Math.PI) / 180);
  const b = chroma * Math.sin((degrees * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    linearToByte(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    linearToByte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    linearToByte(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

// From pale yellow through green to deep blue; on dark paper the other way, so that more is always further from the paper. Even the
// least weight is told from the paper and from what is hidden. The chroma is below what sRGB has along the way: clipped, it would
// show an edge that no weight has.
function sequential(t, dark) {
  return dark
    ? oklch(0.34 + 0.61 * t, 0.05 + 0.12 * t - 0.065 * t ** 4, 275 - 175 * t)
    : oklch(0.97 - 0.67 * t, 0.045 + 0.36 * t * (1 - t) ** 2 + 0.07 * t ** 4, 100 + 172 * t);
}

// Less than the other is orange, more is blue.
function diverging(t, dark) {
  const strength = Math.abs(t);
  const lightness = dark ? 0.34 + 0.46 * strength : 0.97 - 0.485 * strength;
  return oklch(lightness, 0.17 * strength, t < 0 ? 55 : 255);
}

const table = (colour) => [false, true].map((dark) => Array.from({ length: 256 }, (_, i) => colour(i, dark)));
const sequentials = table((i, dark) => sequential(i / 255, dark));
const divergings = table((i, dark) => diverging((i - 128) / 127, dark));

export function weightOf(code, octaves) {
  if (code === codes.zero) return 0;
  if (code > codes.one) return NaN;
  return 2 ** (((code - codes.least) * octaves) / (codes.one - codes.least) - octaves);
}

// Where a weight lies between none (0) and `largest` (1).
export function strength(weight, scale, largest, octaves) {
  if (!(weight > 0)) return 0;
  if (scale === "linear") return Math.min(1, weight / largest);
  const lowest = -octaves;
  return Math.min(1, Math.max(0.02, (Math.log2(weight) - lowest) / (Math.log2(Math.max(largest, 2 ** (1 - octaves))) - lowest)));
}

const notFinite = [214, 0, 108];
const colourAt = (t, dark) => (Number.isNaN(t) ? notFinite : sequentials[dark ? 1 : 0][Math.round(255 * t)]);
const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

// A strength of NaN is that of a weight that is not finite.
export function cssColour(t, dark) {
  return css(colourAt(t, dark));
}

// As the Web Content Accessibility Guidelines have it.
function luminance(rgb) {
  const [r, g, b] = rgb.map((byte) => (byte <= 10 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [dim, bright] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (bright + 0.05) / (dim + 0.05);
}

const inks = [[29, 28, 26], [251, 250, 247], [0, 0, 0], [255, 255, 255]];

// What is written on a colour: the page's ink or paper, and black or white where neither is read well.
export function inkOn(t, dark) {
  const ground = colourAt(t, dark);
  const best = (some) => some.reduce((a, b) => (contrast(a, ground) >= contrast(b, ground) ? a : b));
  const calm = best(inks.slice(0, 2));
  return css(contrast(calm, ground) >= 7 ? calm : best(inks));
}

// One of so many colours that are told apart by hue: the heads of a layer.
export function hueOf(n, count, dark) {
  return css(oklch(dark ? 0.78 : 0.55, 0.15, 25 + (360 * (n % 24)) / Math.min(24, Math.max(count, 3))));
}

const pixel = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const notFinitePixel = pixel(notFinite);

// The pixel of a strength, as the legend has it.
export function pixelOfStrength(t, dark) {
  return pixel(colourAt(t, dark));
}

// The pixel of every code. What is hidden is left out, and the paper's hatching shows.
export function pixelsOfCodes({ scale, largest, octaves, dark }) {
  return Uint32Array.from({ length: 256 }, (_, code) => {
    if (code === codes.hidden) return 0;
    if (code > codes.one) return notFinitePixel;
    return pixel(sequentials[dark ? 1 : 0][Math.round(255 * strength(weightOf(code, octaves), scale, largest, octaves))]);
  });
}

// The pixel of a difference between -largest and largest.
export function pixelOfDifference(difference, largest, dark) {
  if (!Number.isFinite(difference)) return notFinitePixel;
  const t = Math.max(-1, Math.min(1, difference / largest));
  return pixel(divergings[dark ? 1 : 0][Math.round(128 + 127 * t)]);
}
