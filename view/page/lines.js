// SPDX-License-Identifier: Apache-2.0
// Lines from queries on the left to the keys they look at most on the right: of one head, or of all heads of its layer in colours
// that can be switched off.
import { attention } from "./blobs.js";
import { hueOf, strength } from "./colour.js";
import { byId, isTouched, refill } from "./dom.js";
import { headAt } from "./head.js";
import { lineStrength, opacityOf } from "./legend.js";
import { change, mostLines, state } from "./state.js";
import { tokensOf } from "./tokens.js";
import { shortened, visible } from "./visible.js";
import { percent } from "./words.js";

const aboveLines = 30; // the names of the columns
const longestStretch = 80; // tokens at once
const drawing = document.querySelector("#lines canvas");
const chips = byId("line-heads");
const mostChoice = byId("most");
let drawn = null; // what stands where
let pointed = null; // the token under the pointer: { side, n }

const lineHeight = () => (isTouched.matches ? 28 : 21);

// Which tokens stand there: around the chosen one, where there are many.
function stretch(count, centre) {
  const fit = Math.min(count, longestStretch);
  const first = Math.max(0, Math.min(count - fit, Math.round(centre - fit / 2)));
  return { first, last: first + fit };
}

const switchedOff = () => new Set(state.off.split(".").filter(Boolean).map(Number));

function headsOf(head) {
  if (state.heads === "one") return [head];
  const off = switchedOff();
  return attention.runs[head.run].layers[head.layer].heads.map((_, h) => headAt(head.run, head.layer, h)).filter((each) => !off.has(each.index));
}

// A line for each of the largest weights of every query that stands there, as strong as it is among its own row's.
function linesOf(heads, queries) {
  const found = [];
  for (const head of heads) {
    for (let query = queries.first; query < queries.last; ++query) {
      const largest = head.largestOf(query, state.most);
      const end = state.span === "one" ? 1 : largest[0]?.[1];
      for (const [key, weight] of largest) {
        const t = strength(weight, state.scale, end, attention.octaves);
        found.push({ head: head.index, query, key, weight, strength: lineStrength(t) });
      }
    }
  }
  return found.sort((a, b) => a.strength - b.strength);
}

function showChips(head) {
  chips.hidden = state.heads === "one";
  if (chips.hidden) return chips.replaceChildren();
  const off = switchedOff();
  const { length } = attention.runs[head.run].layers[head.layer].heads;
  const set = (numbers) => change({ off: [...numbers].sort((a, b) => a - b).join(".") });
  const all = Array.from({ length }, (_, n) => n);
  const button = (text, title, isOn, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.append(text);
    made.dataset.name = title;
    made.title = title;
    if (isOn !== null) made.setAttribute("aria-pressed", String(isOn));
    made.addEventListener("click", act);
    return made;
  };
  const dark = state.theme === "dark";
  const one = (n) => {
    const mark = document.createElement("span");
    mark.className = "swatch";
    mark.style.background = hueOf(n, length, dark);
    const made = button(mark, `Head ${n}: click to switch it, double-click to see it alone`, !off.has(n), () => set(off.has(n) ? all.filter((each) => off.has(each) && each !== n) : [...off, n]));
    made.append(`Head ${n}`);
    made.addEventListener("dblclick", () => set(all.filter((each) => each !== n)));
    return made;
  };
  return refill(chips, [...all.map(one), button("All", "Lines of all heads", null, () => set([])), button("None", "Lines of no head", null, () => set(all))]);
}

export function drawLines(head) {
  mostChoice.max = String(Math.min(mostLines, head.keys));
  mostChoice.value = String(state.most);
  byId("most-value").textContent = `${state.most} a token`;
  showChips(head);
  const heads = headsOf(head);
  return Promise.all(heads.map((each) => each.readyLargest())).then(() => {
    const centre = state.query >= 0 ? state.query : 0;
    const queries = stretch(head.queries, centre);
    const keys = stretch(head.keys, centre + (attention.runs[head.run].first_position ?? 0));
    drawn = { head, heads: heads.length, queries, keys, lines: linesOf(heads, queries), count: attention.runs[head.run].layers[head.layer].heads.length };
    drawing.style.height = `${aboveLines + 10 + Math.max(queries.last - queries.first, keys.last - keys.first) * lineHeight()}px`;
    drawing.setAttribute("aria-label", `Lines from queries ${queries.first} to ${queries.last - 1} to keys ${keys.first} to ${keys.last - 1}`);
    const isPart = queries.last - queries.first < head.queries;
    const of = state.heads === "all" ? "every head and token" : "every token";
    const which = state.most === 1 ? "strongest line" : `${state.most} strongest lines`;
    const more = isPart ? `Queries ${queries.first} to ${queries.last - 1} of ${head.queries}; choose a token to move.` : `${isTouched.matches ? "Tap" : "Hover or choose"} a token to see its lines alone.`;
    byId("pooled").textContent = `The ${which} of ${of}. ${more}`;
    paintLines();
    keepInSight();
  });
}

// A token that was chosen by key may lie where nobody looks.
let sought = -1;
function keepInSight() {
  if (state.query === sought) return;
  sought = state.query;
  const box = drawing.parentElement;
  const y = aboveLines + (state.query - drawn.queries.first + 0.5) * lineHeight();
  const isSeen = y > box.scrollTop + lineHeight() && y < box.scrollTop + box.clientHeight - lineHeight();
  if (sought >= 0 && !isSeen) box.scrollTop = y - box.clientHeight / 2;
}

// Where things stand at this width.
function places(width) {
  const margin = Math.min(150, width * 0.28);
  const { queries, keys } = drawn;
  const y = (n, from) => aboveLines + (Math.max(-0.2, Math.min(from.last - from.first - 0.8, n - from.first)) + 0.5) * lineHeight();
  const left = Math.max(margin, width / 2 - 280);
  return { left, right: width - left, room: left - 6, atQuery: (n) => y(n, queries), atKey: (n) => y(n, keys) };
}

// The token whose lines are seen alone: under the pointer, or chosen.
const alone = () => pointed ?? (state.query >= 0 ? { side: "query", n: state.query } : null);

function paintLines() {
  const ratio = devicePixelRatio || 1;
  const { width, height } = drawing.getBoundingClientRect();
  if (!drawn || width === 0) return;
  drawing.width = Math.round(width * ratio);
  drawing.height = Math.round(height * ratio);
  const pen = drawing.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const [ink, accent, quiet] = ["--ink", "--accent", "--quiet"].map((name) => style.getPropertyValue(name).trim());
  const at = places(width);
  const seen = alone();
  const isSeen = (line) => !seen || line[seen.side] === seen.n;
  const dark = state.theme === "dark";
  const shift = (n) => (state.heads === "all" ? (n - (drawn.count - 1) / 2) * Math.min(1.4, 12 / drawn.count) : 0);
  const calm = seen ? 1 : 0.75 / Math.sqrt(drawn.heads); // many lines at once leave each other room
  for (const line of drawn.lines) {
    const isFaint = !isSeen(line);
    if (isFaint && (pointed || line.strength < 0.3)) continue;
    pen.globalAlpha = isFaint ? 0.07 : opacityOf(line.strength) * calm;
    pen.strokeStyle = state.heads === "all" ? hueOf(line.head, drawn.count, dark) : accent;
    pen.lineWidth = (0.8 + 2.6 * line.strength) * Math.max(0.4, calm);
    const [from, to] = [at.atQuery(line.query) + shift(line.head), at.atKey(line.key) + shift(line.head)];
    pen.beginPath();
    pen.moveTo(at.left + 8, from);
    pen.bezierCurveTo(at.left + (at.right - at.left) * 0.4, from, at.left + (at.right - at.left) * 0.6, to, at.right - 8, to);
    pen.stroke();
  }
  pen.globalAlpha = 1;
  paintWords(pen, at, { ink, accent, quiet });
  paintShares(pen, at, quiet, seen, isSeen, dark);
}

const lineFont = (weight) => `${weight} 13px "Inter", system-ui, "Noto Sans", "DejaVu Sans", sans-serif`;
const shareRoom = 54; // pixels beside a token for how much it is looked at

// A token as far as it has room, of which its share takes some.
function label(pen, token, room) {
  const text = visible(token);
  let longest = Array.from(text).length;
  while (longest > 3 && pen.measureText(shortened(text, longest)).width > room) --longest;
  return shortened(text, longest);
}

// The tokens at the other end of the lines that are seen alone.
function endsOf(seen) {
  if (!seen) return new Set();
  const other = seen.side === "query" ? "key" : "query";
  return new Set(drawn.lines.filter((line) => line[seen.side] === seen.n).map((line) => line[other]));
}

function paintWords(pen, at, { ink, accent, quiet }) {
  const names = tokensOf[drawn.head.run];
  const seen = alone();
  const ends = endsOf(seen);
  pen.textBaseline = "middle";
  const column = (side, tokens, from, x, align, y) => {
    pen.textAlign = align;
    pen.font = lineFont(400);
    pen.fillStyle = quiet;
    const title = side === "query" ? "Queries look …" : "… at keys";
    pen.fillText(title, align === "right" ? Math.max(x, pen.measureText(title).width + 2) : x, 14); // whole on a narrow screen, too
    for (let n = from.first; n < from.last; ++n) {
      const isChosen = seen?.side === side && seen.n === n;
      pen.font = lineFont(isChosen ? 700 : 400);
      pen.fillStyle = isChosen ? accent : ink;
      const hasShare = seen && seen.side !== side && ends.has(n);
      pen.fillText(label(pen, tokens[n], hasShare ? at.room - shareRoom : at.room), x, y(n));
    }
  };
  column("query", names.queries, drawn.queries, at.left, "right", at.atQuery);
  column("key", names.keys, drawn.keys, at.right, "left", at.atKey);
}

// Beside the token at the other end: how much, or a square for each head, as wide as all of them have room.
function paintShares(pen, at, quiet, seen, isSeen, dark) {
  if (!seen) return;
  const names = tokensOf[drawn.head.run];
  const isRight = seen.side === "query";
  const [other, from, tokens, y] = isRight ? ["key", drawn.keys, names.keys, at.atKey] : ["query", drawn.queries, names.queries, at.atQuery];
  const lines = drawn.lines.filter((line) => isSeen(line) && line[other] >= from.first && line[other] < from.last);
  for (const n of new Set(lines.map((line) => line[other]))) {
    pen.font = lineFont(400);
    const gap = 8 + pen.measureText(label(pen, tokens[n], at.room - shareRoom)).width;
    const here = lines.filter((line) => line[other] === n).sort((a, b) => a.head - b.head);
    if (state.heads === "one") {
      pen.font = '12px ui-monospace, "DejaVu Sans Mono", monospace';
      pen.textAlign = isRight ? "left" : "right";
      pen.fillStyle = quiet;
      pen.fillText(percent(here[0].weight), isRight ? at.right + gap : at.left - gap, y(n));
      continue;
    }
    const step = Math.min(9, (at.left - gap - 2) / here.length);
    here.forEach((line, place) => {
      pen.globalAlpha = 0.15 + 0.85 * line.strength;
      pen.fillStyle = hueOf(line.head, drawn.count, dark);
      pen.fillRect(isRight ? at.right + gap + place * step : at.left - gap - (place + 1) * step + 1, y(n) - 5, Math.max(1, step - 1), 10);
    });
    pen.globalAlpha = 1;
  }
}

// The token under a point of the window.
function tokenAt(event) {
  if (!drawn) return null;
  const bounds = drawing.getBoundingClientRect();
  const side = event.clientX - bounds.left < bounds.width / 2 ? "query" : "key";
  const from = side === "query" ? drawn.queries : drawn.keys;
  const n = from.first + Math.floor((event.clientY - bounds.top - aboveLines) / lineHeight());
  return n >= from.first && n < from.last ? { side, n } : null;
}

function point(token) {
  if (JSON.stringify(token) === JSON.stringify(pointed)) return;
  pointed = token;
  drawing.style.cursor = token ? "pointer" : "";
  paintLines();
}

drawing.addEventListener("pointermove", (event) => {
  if (event.pointerType !== "touch") point(tokenAt(event));
});
drawing.addEventListener("pointerleave", () => point(null));
drawing.addEventListener("click", (event) => {
  const token = tokenAt(event);
  if (token?.side === "query") change({ query: token.n === state.query ? -1 : token.n, key: -1 });
  else if (isTouched.matches) point(token);
});
mostChoice.addEventListener("input", () => change({ most: Number(mostChoice.value) }));
