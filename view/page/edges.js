// SPDX-License-Identifier: Apache-2.0
// The edges of a map: the words of queries and keys where there is room for them, else their numbers.
import { tokensOf } from "./tokens.js";
import { shortened, visible } from "./visible.js";

const family = '"Inter", system-ui, "Noto Sans", "DejaVu Sans", sans-serif';
const font = `12px ${family}`;
const roomForAWord = 8.5; // pixels; words of that size are still read
const longestWord = 16;
const titleRoom = 18; // pixels for the name of an axis
const measure = document.createElement("canvas").getContext("2d");
const widths = new Map();

const wordOf = (token) => shortened(visible(token), longestWord);

// How much room the edges need: that of the widest of some words, but little of a narrow screen.
export function edgeWidths(head, room) {
  if (!widths.has(head.run)) {
    measure.font = font;
    const widestOf = (tokens) => {
      const every = Math.max(1, Math.floor(tokens.length / 400));
      const some = tokens.filter((_, i) => i % every === 0);
      return Math.min(106, Math.max(30, ...some.map((token) => measure.measureText(wordOf(token)).width))) + 16;
    };
    const { queries, keys } = tokensOf[head.run];
    widths.set(head.run, { left: Math.ceil(widestOf(queries)), top: Math.ceil(widestOf(keys)) });
  }
  const { left, top } = widths.get(head.run);
  const most = Math.max(42, 0.2 * Math.min(room.width, room.height));
  return { left: Math.min(left, most) + titleRoom, top: Math.min(top, most) + titleRoom };
}

// Round distances between numbers that stand some eighty pixels apart.
function stepBetween(pixelsEach) {
  const wanted = 80 / pixelsEach;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, wanted)));
  return Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((step) => step >= wanted));
}

function clipped(context, text, room) {
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > room) shown = `${Array.from(shown).slice(0, -2).join("")}…`;
  return shown;
}

// Words along one axis where they fit, else numbers, and in any case the chosen one. `draw` is given each with its place.
function along({ context, count, from, seen, step, tokens, chosen, room }, draw) {
  const isWords = step >= roomForAWord;
  context.font = isWords ? `${Math.min(12, Math.max(9, step - 0.5))}px ${family}` : font;
  const every = isWords ? 1 : stepBetween(step);
  const first = Math.ceil(Math.floor(from) / every) * every;
  const apart = isWords ? 0 : 16 / step; // numbers leave room for the chosen word
  for (let n = first; n < Math.min(count, from + seen); n += every) {
    if (n !== chosen && (chosen < 0 || Math.abs(n - chosen) > apart)) draw(n, isWords ? clipped(context, wordOf(tokens[n]), room) : n.toLocaleString("en"), false);
  }
  if (chosen < from || chosen >= from + seen) return;
  context.font = `600 ${isWords ? Math.min(12, Math.max(9, step - 0.5)) : 12}px ${family}`;
  draw(chosen, clipped(context, wordOf(tokens[chosen]), room), true);
}

export function drawEdges(context, head, camera, colours, end, chosen) {
  context.textBaseline = "middle";
  const { queries, keys } = tokensOf[head.run];
  context.textAlign = "right";
  const down = { context, count: head.queries, from: camera.y, seen: camera.seenY, step: camera.stepY, tokens: queries, chosen: chosen.query, room: camera.edges.left - titleRoom - 8 };
  along(down, (n, word, isChosen) => {
    const y = camera.top + (n + 0.5 - camera.y) * camera.stepY;
    if (y < camera.top || y > end.bottom) return;
    context.fillStyle = isChosen ? colours.accent : colours.ink;
    context.fillText(word, camera.left - 6, y);
  });
  context.textAlign = "left";
  const across = { context, count: head.keys, from: camera.x, seen: camera.seenX, step: camera.stepX, tokens: keys, chosen: chosen.key, room: camera.edges.top - titleRoom - 8 };
  along(across, (n, word, isChosen) => {
    const x = camera.left + (n + 0.5 - camera.x) * camera.stepX;
    if (x < camera.left || x > end.right) return;
    context.save();
    context.translate(x, camera.top - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = isChosen ? colours.accent : colours.ink;
    context.fillText(word, 0, 0);
    context.restore();
  });
  drawTitles(context, camera, colours, end);
}

// What the axes are.
function drawTitles(context, camera, colours, end) {
  context.font = font;
  context.fillStyle = colours.quiet;
  const fitting = (texts, room) => texts.find((text) => context.measureText(text).width <= room) ?? "";
  context.textAlign = "center";
  const [wide, tall] = [end.right - camera.left, end.bottom - camera.top];
  context.fillText(fitting(["Keys: the tokens looked at →", "Keys →"], wide), camera.left + wide / 2, camera.top - camera.edges.top + 8);
  context.save();
  context.translate(camera.left - camera.edges.left + 8, camera.top + tall / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(fitting(["← Queries: the tokens that look", "← Queries"], tall), 0, 0);
  context.restore();
}
