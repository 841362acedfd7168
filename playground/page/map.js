// SPDX-License-Identifier: Apache-2.0
// The weights of all heads, small, and of one, large: a row for every query. Masks are drawn on it.
import { cssColour, inkOn } from "../../view/page/colour.js";
import { digitsOf } from "../../view/page/digits.js";
import { visible } from "../../view/page/visible.js";
import { asDigits } from "./masks.js";
import { redraw } from "./redraw.js";
import { change, hiddenPairs, state, words } from "./state.js";
import { model } from "./model.js";
import { kindOf } from "./vectors.js";

const box = document.getElementById("map");
let painting = null; // what dragging does: 1 hides, 0 shows

const plain = (x) => (Math.abs(x) < 1e6 || Number.isNaN(x) ? x.toFixed(3) : Math.abs(x) === Infinity ? String(x).replace("Infinity", "∞") : x.toExponential(2));
export const digits = (x) => plain(x).replace("-", "−");

function paint(query, key) {
  const count = words().length;
  const pairs = hiddenPairs(count);
  pairs[query * count + key] = painting;
  change({ hidden: asDigits(pairs), query, key });
}

function cellAt(event) {
  const cell = document.elementFromPoint(event.clientX, event.clientY)?.closest("#map [data-key]");
  return cell && { query: Number(cell.dataset.query), key: Number(cell.dataset.key) };
}

box.addEventListener("pointerdown", (event) => {
  const at = cellAt(event);
  if (!at) return;
  if (state.tool === "follow") {
    change(at);
    return;
  }
  const count = words().length;
  painting = 1 - hiddenPairs(count)[at.query * count + at.key];
  paint(at.query, at.key);
});
box.addEventListener("pointermove", (event) => {
  const at = painting !== null && cellAt(event);
  if (at && (at.query !== state.query || at.key !== state.key)) paint(at.query, at.key);
});
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => (painting = null));

const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
box.addEventListener("keydown", (event) => {
  const move = moves[event.key];
  if (move) {
    event.preventDefault();
    change({ query: Math.max(0, state.query + move[0]), key: Math.max(0, state.key + move[1]) });
  } else if (event.key.toLowerCase() === "x") {
    const count = words().length;
    painting = 1 - hiddenPairs(count)[state.query * count + state.key];
    paint(state.query, state.key);
    painting = null;
  }
});

function colourCell(cell, weight, isHidden) {
  const dark = state.theme === "dark";
  cell.classList.toggle("unseen", isHidden);
  cell.style.background = isHidden ? "" : cssColour(Math.min(1, weight), dark);
  cell.style.color = isHidden ? "" : inkOn(Math.min(1, weight), dark);
}

function drawLegend() {
  const dark = state.theme === "dark";
  const stops = Array.from({ length: 17 }, (_, n) => cssColour(n / 16, dark));
  document.getElementById("legend-bar").style.background = `linear-gradient(to right, ${stops.join(", ")})`;
}

function drawMap(found, hidden, count) {
  const tokens = words().map(visible);
  const label = (text, name) => {
    const cell = document.createElement("span");
    cell.className = name;
    cell.textContent = cell.title = text;
    return cell;
  };
  const cells = [label("", "corner"), ...tokens.map((token) => label(token, "key-name"))];
  for (let query = 0; query < count; ++query) {
    cells.push(label(tokens[query], query === state.query ? "query-name chosen" : "query-name"));
    for (let key = 0; key < count; ++key) {
      const cell = document.createElement("span");
      const weight = found.weights[(state.head * count + query) * count + key];
      const isHidden = hidden[query * count + key] === 1;
      cell.dataset.query = query;
      cell.dataset.key = key;
      cell.className = query === state.query && key === state.key ? "chosen" : query === state.query ? "followed" : "";
      cell.textContent = isHidden || count > 14 ? "" : weight.toFixed(2).replace(/^0/, "");
      colourCell(cell, weight, isHidden);
      cells.push(cell);
    }
  }
  box.style.gridTemplateColumns = `minmax(2em, auto) repeat(${count}, minmax(0, 1fr))`;
  redraw(box, cells);
  const at = state.query * count + state.key;
  const weight = hidden[at] ? "hidden by the mask" : digitsOf(found.weights[state.head * count * count + at]);
  document.getElementById("cell").textContent = `“${tokens[state.query]}” (query ${state.query}) looks at “${tokens[state.key]}” (key ${state.key}): ${weight}`;
}

const strip = document.getElementById("strip");
strip.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (button) change({ head: Number(button.dataset.head) });
});

function thumb(found, hidden, count, head) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", String(head === state.head));
  button.title = `Head ${head}: ${kindOf(head)}`;
  button.setAttribute("aria-label", button.title);
  button.dataset.head = head;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = count;
  const pen = canvas.getContext("2d");
  for (let at = 0; at < count * count; ++at) {
    if (hidden[at]) continue;
    pen.fillStyle = cssColour(Math.min(1, found.weights[head * count * count + at]), state.theme === "dark");
    pen.fillRect(at % count, Math.floor(at / count), 1, 1);
  }
  button.append(canvas, `Head ${head}`);
  return button;
}

export function drawWeights(found, hidden) {
  const count = words().length;
  const shared = state.heads / state.kvHeads;
  const groups = Array.from({ length: state.kvHeads }, (_, kv) => {
    const group = document.createElement("div");
    group.className = "sharing";
    group.dataset.name = `KV head ${kv}`;
    group.append(...Array.from({ length: shared }, (_, n) => thumb(found, hidden, count, kv * shared + n)));
    return group;
  });
  redraw(strip, groups);
  const from = state.source < 0 ? "" : ` (${model.model}, ${model.heads[state.head].name})`;
  document.getElementById("head-name").textContent = `of head ${state.head}, which asks for ${kindOf(state.head)}${from}`;
  drawMap(found, hidden, count);
  drawLegend();
}
