// SPDX-License-Identifier: Apache-2.0
// All heads of all runs and layers as small pictures, in their places or in the order of a number.
import { attention } from "./blobs.js";
import { pixelsOfCodes } from "./colour.js";
import { byId, element, isTouched } from "./dom.js";
import { allHeads, endOfScale, headAt, leastEnd, nameOf } from "./head.js";
import { showLegend } from "./legend.js";
import { measures } from "./profile.js";
import { change, state } from "./state.js";

const grid = byId("grid");
export const largestThumb = 64; // cells

// A level of at most 64 x 64 cells, in the head's own scale.
export async function drawThumb(canvas, head) {
  const level = head.levels.find((each) => Math.max(each.rows, each.columns) <= largestThumb) ?? head.levels[head.levels.length - 1];
  const { scale, kind, theme } = state;
  const codes = await head.codes(level, kind);
  canvas.width = level.columns;
  canvas.height = level.rows;
  const image = new ImageData(level.columns, level.rows);
  const pixels = pixelsOfCodes({ scale, largest: endOfScale(head), octaves: attention.octaves, dark: theme === "dark" });
  const painted = new Uint32Array(image.data.buffer);
  for (let i = 0; i < painted.length; ++i) painted[i] = pixels[codes[i]];
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// The number under every head: what they are ordered or chosen by.
const numberShown = () => [state.sort, state.filter].map((id) => measures.find((each) => each.id === id)).find(Boolean) ?? measures[0];

function thumb(head, name) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "thumb";
  Object.assign(button.dataset, { run: head.run, layer: head.layer, head: head.index });
  const canvas = document.createElement("canvas");
  const label = document.createElement("span");
  label.className = "name";
  const measure = numberShown();
  const value = measure.text(measure.of(head.facts));
  for (const text of name ? [name, value] : [value]) {
    const span = document.createElement("span");
    span.textContent = text;
    label.append(span);
  }
  button.setAttribute("aria-label", `${nameOf(head)}, ${measure.name} ${value}`);
  button.title = `${nameOf(head)}\n${measure.name}: ${value}\n${measure.hint}`;
  button.append(canvas, label);
  button.addEventListener("click", () => change({ run: head.run, layer: head.layer, head: head.index }));
  drawThumb(canvas, head);
  return button;
}

function isShown(head) {
  const measure = measures.find((each) => each.id === state.filter);
  if (!measure) return true;
  const value = measure.of(head.facts);
  return !(state.from !== "" && value < Number(state.from)) && !(state.to !== "" && value > Number(state.to));
}

function extentOf(run) {
  const heads = run.layers[0]?.heads.length ?? 0;
  const kvHeads = run.layers[0]?.kv_heads ?? 0;
  const sharing = kvHeads === 1 ? " share one KV head" : ` over ${kvHeads} KV heads`;
  const kind = kvHeads === heads ? "" : `${sharing} (1/${heads / kvHeads} of the KV cache of multi-head attention, MHA)`;
  const layers = run.layers.length > 1 ? `${run.layers.length} layers of ` : "";
  const of = (n, what) => `${n.toLocaleString("en")} ${n === 1 ? what.replace(/ies$/, "y").replace(/s$/, "") : what}`;
  return `${layers}${of(heads, "heads")}${kind} · ${of(run.queries, "queries")} × ${of(run.keys, "keys")}`;
}

function gridCell(name, text, column, span = 1) {
  const made = element(name === "layer-name" ? "h3" : "div", text, name);
  made.style.gridColumn = `${column} / span ${span}`;
  return made;
}

// Which heads read one KV head: a bracket over neighbours, or a name over each where they are tiled.
function brackets(layer) {
  const { heads, kv_heads: kvHeads, tiled } = layer;
  if (kvHeads === heads.length) return [];
  const shared = heads.length / kvHeads;
  return tiled
    ? heads.map((_, h) => gridCell("bracket", `KV ${h % kvHeads}`, h + 2))
    : Array.from({ length: kvHeads }, (_, kv) => gridCell("bracket", shared > 1 ? `KV head ${kv}` : `KV ${kv}`, 2 + kv * shared, shared));
}

// A row for every layer and a column for every head, so that head n stands above head n.
function layersOf(r) {
  const { layers } = attention.runs[r];
  const table = document.createElement("div");
  table.className = "heads";
  const columns = Math.max(0, ...layers.map((layer) => layer.heads.length));
  table.dataset.columns = columns;
  table.dataset.named = layers.length > 1 || layers[0]?.name ? "yes" : "no";
  table.append(gridCell("corner", "", 1), ...Array.from({ length: columns }, (_, h) => gridCell("column-name", columns > 16 ? String(h) : `Head ${h}`, h + 2)));
  let bracketed = ""; // how heads share KV heads in the row above
  layers.forEach((layer, l) => {
    const thumbs = layer.heads.map((_, h) => headAt(r, l, h)).filter(isShown).map((head) => {
      const made = thumb(head, "");
      made.style.gridColumn = String(head.index + 2);
      return made;
    });
    if (thumbs.length === 0) return;
    const grouping = JSON.stringify([layer.kv_heads, layer.tiled, layer.heads.length]);
    if (grouping !== bracketed) table.append(...brackets(layer));
    bracketed = grouping;
    table.append(gridCell("layer-name", layer.name || (layers.length > 1 ? `Layer ${l}` : ""), 1), ...thumbs);
  });
  return table;
}

function inPlaces() {
  return attention.runs.map((run, r) => {
    const section = document.createElement("section");
    section.className = "run";
    const heading = document.createElement("h2");
    heading.textContent = run.name || (attention.runs.length > 1 ? `Run ${r}` : "");
    heading.hidden = heading.textContent === "";
    const extent = document.createElement("p");
    extent.className = "quiet";
    extent.textContent = extentOf(run);
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.append(layersOf(r));
    section.append(heading, extent, scroll);
    return section;
  });
}

function inOrder(measure) {
  const box = document.createElement("div");
  box.className = "sorted";
  const shown = allHeads.filter(isShown).sort((a, b) => measure.of(b.facts) - measure.of(a.facts));
  box.append(...shown.map((head) => thumb(head, nameOf(head).replaceAll("Layer ", "L").replace("Head ", "H"))));
  return [box];
}

// As large as fits beside each other, but not larger than it helps nor too small for a finger; or as was chosen.
function sizeFor(columns, width, named) {
  if (state.size > 0) return state.size;
  const gap = 8;
  const room = width - (named ? 72 : 0) - 4;
  return Math.min(156, Math.max(isTouched.matches ? 44 : 36, Math.floor((room - gap * (columns - 1)) / columns)));
}

function fitSizes(width) {
  const widest = Math.max(...attention.runs.flatMap((run) => run.layers.map((layer) => layer.heads.length)));
  const named = attention.runs.some((run) => run.layers.length > 1 || run.layers[0]?.name);
  const isSorted = measures.some((each) => each.id === state.sort);
  const size = isSorted ? sizeFor(Math.max(3, Math.round(width / 125)), width, false) : sizeFor(widest, width, named);
  grid.style.setProperty("--thumb", `${size}px`);
  grid.classList.toggle("small", size < 76);
  for (const table of grid.querySelectorAll(".heads")) table.style.setProperty("--columns", table.dataset.columns);
  for (const box of grid.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) Object.assign(box, { tabIndex: 0, role: "group", ariaLabel: "Heads" });
    else for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
  }
  sizeChoice.value = String(size);
}

function drawHeads(measure) {
  const { sort, filter, from, to, scale, span, kind, theme } = state;
  const as = JSON.stringify([sort, filter, from, to, scale, span, kind, theme]);
  if (as === shownAs) return;
  shownAs = as;
  grid.replaceChildren(...(measure ? inOrder(measure) : inPlaces()));
  const count = allHeads.filter(isShown).length;
  byId("shown-count").textContent = filter ? `${count} of ${allHeads.length} heads` : "";
  const about = numberShown();
  byId("measure-note").textContent = `The number of each head: ${about.name.toLowerCase()}, ${about.note ?? about.hint}.`;
}

// The scales of the pictures end at different weights; that of a flat head ends above its largest.
function endInWords() {
  const flat = allHeads.filter((head) => head.facts.largest < leastEnd(head)).map(leastEnd);
  if (flat.length === 0) return "the head’s largest";
  return flat.every((end) => end === flat[0]) ? `its largest, at least ${Number(flat[0].toPrecision(3))}` : "its largest, at least 4 ÷ keys";
}

let shownAs = "";
export function drawGrid() {
  const { clientWidth } = grid; // asked before there are heads, whose places would have to be found for it
  drawHeads(measures.find((each) => each.id === state.sort));
  fitSizes(clientWidth);
  if (grid.clientWidth !== clientWidth) fitSizes(grid.clientWidth); // they brought a scrollbar
  const facts = allHeads.map((head) => head.facts);
  showLegend({
    caption: "Weight",
    endText: state.span === "one" ? "" : endInWords(),
    hides: allHeads.some((head) => head.facts.seen < head.queries * head.keys),
    notFinite: facts.some((each) => each.not_finite > 0),
  });
}

// The choices above the grid.
const sortChoice = byId("sort");
const filterChoice = byId("filter-by");
const sizeChoice = byId("size");
const usable = measures.filter((measure) => !measure.needsPositions || attention.runs.some((run) => run.first_position !== null));
sortChoice.append(new Option("by layer and head", "place"), ...usable.map((measure) => new Option(measure.most, measure.id)));
filterChoice.append(new Option("all heads", ""), ...usable.map((measure) => new Option(measure.range, measure.id)));
sortChoice.addEventListener("change", () => change({ sort: sortChoice.value }));
filterChoice.addEventListener("change", () => change({ filter: filterChoice.value, from: "", to: "" }));
sizeChoice.addEventListener("input", () => change({ size: Number(sizeChoice.value) }));
for (const end of ["from", "to"]) {
  const input = byId(`filter-${end}`);
  input.addEventListener("input", () => change({ [end]: input.value }));
}

export function drawGridChoices() {
  sortChoice.value = state.sort;
  filterChoice.value = state.filter;
  byId("filter-range").hidden = !state.filter;
  for (const end of ["from", "to"]) {
    const input = byId(`filter-${end}`);
    if (input.value !== state[end]) input.value = state[end];
  }
}
