// SPDX-License-Identifier: Apache-2.0
// All heads of all runs and layers as small pictures, in their places or in the order of a number.
import { attention } from "./blobs.js";
import { pixelsOfCodes } from "./colour.js";
import { allHeads, endOfScale, groupOf, headAt, nameOf } from "./head.js";
import { measures } from "./profile.js";
import { change, state } from "./state.js";

const grid = document.getElementById("grid");
const side = 64;

// A level of at most 64 x 64 cells, in the head's own scale.
export async function drawThumb(canvas, head) {
  const level = head.levels.find((each) => Math.max(each.rows, each.columns) <= side) ?? head.levels[head.levels.length - 1];
  const { scale, kind, theme } = state;
  const codes = await head.codes(level, kind);
  canvas.width = level.columns;
  canvas.height = level.rows;
  const image = new ImageData(level.columns, level.rows);
  const pixels = pixelsOfCodes({ scale, largest: endOfScale(head), octaves: attention.octaves, dark: theme === "dark" });
  new Uint32Array(image.data.buffer).set(Uint32Array.from(codes, (code) => pixels[code]));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function thumb(head, name) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "thumb";
  Object.assign(button.dataset, { run: head.run, layer: head.layer, head: head.index });
  const canvas = document.createElement("canvas");
  const label = document.createElement("div");
  label.className = "name";
  const measure = measures.find((each) => each.id === state.sort) ?? measures[0];
  const value = measure.text(measure.of(head.facts));
  for (const text of [name, value]) {
    const span = document.createElement("span");
    span.textContent = text;
    label.append(span);
  }
  button.setAttribute("aria-label", `${nameOf(head)}, ${measure.name} ${value}`);
  button.title = `${nameOf(head)}\n${measure.name}: ${value}`;
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
  const kind = kvHeads === heads ? "" : kvHeads === 1 ? " share one KV head" : ` over ${kvHeads} KV heads`;
  const layers = run.layers.length > 1 ? `${run.layers.length} layers of ` : "";
  const of = (n, what) => `${n.toLocaleString("en")} ${n === 1 ? what.replace(/ies$/, "y").replace(/s$/, "") : what}`;
  return `${layers}${of(heads, "heads")}${kind} · ${of(run.queries, "queries")} × ${of(run.keys, "keys")}`;
}

function layerRow(run, layer) {
  const row = document.createElement("div");
  row.className = "layer";
  const { name, heads, kv_heads: kvHeads } = attention.runs[run].layers[layer];
  const heading = document.createElement("h3");
  heading.textContent = name || (attention.runs[run].layers.length > 1 ? `Layer ${layer}` : "");
  heading.hidden = heading.textContent === "";
  const groups = document.createElement("div");
  groups.className = "groups";
  const boxes = Array.from({ length: kvHeads }, (_, n) => {
    const box = document.createElement("div");
    box.className = kvHeads < heads.length ? "group shared" : "group";
    box.dataset.name = `KV head ${n}`;
    return box;
  });
  heads.forEach((_, h) => {
    const head = headAt(run, layer, h);
    if (isShown(head)) boxes[groupOf(head).kvHead].append(thumb(head, String(h)));
  });
  groups.append(...boxes.filter((box) => box.childElementCount > 0));
  if (kvHeads < heads.length) row.classList.add("grouped");
  row.append(heading, groups);
  return groups.childElementCount > 0 ? row : null;
}

function inPlaces() {
  return attention.runs.map((run, r) => {
    const section = document.createElement("section");
    section.className = "run";
    const heading = document.createElement("h2");
    heading.textContent = run.name || (attention.runs.length > 1 ? `Run ${r}` : "");
    const extent = document.createElement("p");
    extent.className = "quiet";
    extent.textContent = extentOf(run);
    section.append(heading, extent, ...run.layers.map((_, l) => layerRow(r, l)).filter(Boolean));
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

let shownAs = "";
export function drawGrid() {
  const { sort, filter, from, to, scale, kind, theme } = state;
  const as = JSON.stringify([sort, filter, from, to, scale, kind, theme]);
  if (as === shownAs) return;
  shownAs = as;
  const measure = measures.find((each) => each.id === sort);
  grid.className = allHeads.length > 96 ? "many" : allHeads.length <= 12 ? "few" : "";
  grid.replaceChildren(...(measure ? inOrder(measure) : inPlaces()));
  const count = allHeads.filter(isShown).length;
  document.getElementById("shown-count").textContent = filter ? `${count} of ${allHeads.length} heads` : "";
}

// The choices above the grid.
const sortChoice = document.getElementById("sort");
const filterChoice = document.getElementById("filter-by");
const usable = measures.filter((measure) => !measure.needsPositions || attention.runs.some((run) => run.first_position !== null));
sortChoice.append(new Option("by layer and head", "place"), ...usable.map((measure) => new Option(`by ${measure.name.toLowerCase()}`, measure.id)));
filterChoice.append(new Option("all heads", ""), ...usable.map((measure) => new Option(`by ${measure.name.toLowerCase()}`, measure.id)));
sortChoice.addEventListener("change", () => change({ sort: sortChoice.value }));
filterChoice.addEventListener("change", () => change({ filter: filterChoice.value, from: "", to: "" }));
for (const end of ["from", "to"]) {
  const input = document.getElementById(`filter-${end}`);
  input.addEventListener("input", () => change({ [end]: input.value }));
}

export function drawGridChoices() {
  sortChoice.value = state.sort;
  filterChoice.value = state.filter;
  document.getElementById("filter-range").hidden = !state.filter;
  for (const end of ["from", "to"]) {
    const input = document.getElementById(`filter-${end}`);
    if (input.value !== state[end]) input.value = state[end];
  }
}
