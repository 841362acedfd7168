// SPDX-License-Identifier: Apache-2.0
// The edges of a map: the words of queries and keys where there is room for them, else their numbers.
import { tokensOf } from "./tokens.js";
import { shortened, visible } from "./visible.js";

const font = '12px "Inter", system-ui, "Noto Sans", "DejaVu Sans", sans-serif';
const roomForAWord = 10; // pixels
const longestWord = 16;
const widest = 118;
const measure = document.createElement("canvas").getContext("2d");
const widths = new Map();

function labelsOf(tokens) {
  return tokens.map((token) => shortened(visible(token), longestWord));
}
const labels = tokensOf.map(({ queries, keys }) => ({ queries: labelsOf(queries), keys: labelsOf(keys) }));

// How much room the edges need: that of the widest of some words.
export function edgeWidths(head) {
  if (!widths.has(head.run)) {
    measure.font = font;
    const widestOf = (words) => {
      const every = Math.max(1, Math.floor(words.length / 400));
      const some = words.filter((_, i) => i % every === 0);
      return Math.min(widest, Math.max(30, ...some.map((word) => measure.measureText(word).width)) + 12);
    };
    const { queries, keys } = labels[head.run];
    widths.set(head.run, { left: Math.ceil(widestOf(queries)), top: Math.ceil(widestOf(keys)) });
  }
  return widths.get(head.run);
}

// Round distances between numbers that stand some eighty pixels apart.
function stepBetween(pixelsEach) {
  const wanted = 80 / pixelsEach;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, wanted)));
  return Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((step) => step >= wanted));
}

function clipped(context, text) {
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > widest - 12) shown = `${Array.from(shown).slice(0, -2).join("")}…`;
  return shown;
}

export function drawEdges(context, head, camera, colours, end) {
  context.font = font;
  context.textBaseline = "middle";
  const { queries, keys } = labels[head.run];
  const along = (count, from, seen, step, draw, words) => {
    const every = step >= roomForAWord ? 1 : stepBetween(step);
    const first = Math.ceil(Math.floor(from) / every) * every;
    for (let n = first; n < Math.min(count, from + seen); n += every) draw(n, step >= roomForAWord ? clipped(context, words[n]) : n.toLocaleString("en"));
  };
  context.textAlign = "right";
  along(head.queries, camera.y, camera.seenY, camera.stepY, (n, word) => {
    const y = camera.top + (n + 0.5 - camera.y) * camera.stepY;
    if (y < camera.top || y > end.bottom) return;
    context.fillStyle = colours.ink;
    context.fillText(word, camera.left - 6, y);
  }, queries);
  context.textAlign = "left";
  along(head.keys, camera.x, camera.seenX, camera.stepX, (n, word) => {
    const x = camera.left + (n + 0.5 - camera.x) * camera.stepX;
    if (x < camera.left || x > end.right) return;
    context.save();
    context.translate(x, camera.top - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = colours.ink;
    context.fillText(word, 0, 0);
    context.restore();
  }, keys);
}
