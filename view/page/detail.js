// SPDX-License-Identifier: Apache-2.0
// One head, large: its map (or three, where two runs are compared), what it is in numbers, and the chosen token.
import { attention } from "./blobs.js";
import { showChosen } from "./chosen.js";
import { byId, element } from "./dom.js";
import { drawThumb } from "./grid.js";
import { allHeads, endOfScale, groupOf, headAt, nameOf } from "./head.js";
import { Heatmap } from "./heatmap.js";
import { showDifferences, showLegend } from "./legend.js";
import { drawLines } from "./lines.js";
import { showNumbers, showProfile } from "./profile.js";
import { change, state } from "./state.js";
import { drawTable } from "./table.js";
import { drawText, textMeaning } from "./text.js";
import { runName, said } from "./words.js";

const tip = byId("tip");
export let maps = [];
let shownMaps = "";

// The runs that have such a head over as many queries and keys.
function comparable(head) {
  return attention.runs.map((_, r) => headAt(r, head.layer, head.index)).filter((other) => other && other.run !== head.run && other.queries === head.queries && other.keys === head.keys);
}

function otherHead(head) {
  return comparable(head).find((other) => other.run === state.compare) ?? null;
}

function hover(map, event) {
  const cell = event && map.cellAt(event.clientX, event.clientY);
  map.canvas.style.cursor = event && !cell && map.choiceAt(event.clientX, event.clientY) ? "pointer" : ""; // a word at an edge
  tip.hidden = !cell || !(map.head.all || map.head.max);
  if (tip.hidden) return;
  const { sentence, value, more } = said(map.head, cell.query, cell.key, map.other);
  tip.replaceChildren(element("div", sentence, "sentence"), element("b", value), element("div", `query ${cell.query}, key ${cell.key}${more ? ` · ${more}` : ""}`, "quiet"));
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 16, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${event.clientY + 16 + tip.offsetHeight + 8 > innerHeight ? Math.max(8, event.clientY - tip.offsetHeight - 12) : event.clientY + 16}px`;
}

function makeMaps(head, other) {
  const as = `${head.run} ${head.layer} ${head.index} ${other ? other.run : ""}`;
  if (as === shownMaps) return;
  shownMaps = as;
  const pairs = other ? [[head, null], [other, null], [head, other]] : [[head, null]];
  byId("maps").replaceChildren();
  maps = pairs.map(([mine, theirs]) => {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = theirs ? `${runName(mine.run)} − ${runName(theirs.run)}` : runName(mine.run);
    if (attention.runs.length > 1) caption.append(element("b", name)); // also of one map, which then stays where it is if it is compared
    const canvas = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Map of ${nameOf(mine)}${theirs ? `, less ${nameOf(theirs)}` : ""}: ${mine.queries} queries by ${mine.keys} keys`);
    const frame = element("div", "", "frame");
    frame.append(canvas);
    if (theirs) caption.append(element("span", "", "differences"));
    figure.append(caption, frame);
    byId("maps").append(figure);
    const map = new Heatmap(canvas, mine, theirs, hover);
    if (other && !theirs) map.compared = mine === head ? other : head;
    return map;
  });
  Promise.all([head.ready(), other?.ready()]).then(() => {
    maps.forEach((map) => map.draw());
    legendOf(head, other);
  });
}

const hides = (head) => head.facts.seen < head.queries * head.keys;

// What the colours of the map, the text or the lines mean.
function legendOf(head, other) {
  const marks = { hides: hides(head), notFinite: head.facts.not_finite > 0 };
  if (state.view === "text") showLegend({ ...textMeaning(head), ...marks });
  else if (state.view === "lines") showLegend({ caption: "Weight", endText: state.span === "one" ? "" : "the token’s largest", isLines: true, ...marks });
  else if (state.view === "table") showLegend({ caption: "Weight", largest: endOfScale(head), ...marks });
  else showLegend({ caption: "Weight", largest: endOfScale(head, ...(other ? [other] : [])), ...marks });
  if (other && state.view === "map") showDifferences(document.querySelector("#maps .differences"), maps.at(-1).largestDifference());
}

function showGroup(head) {
  const { kvHead, heads } = groupOf(head);
  const box = byId("group");
  box.replaceChildren();
  if (heads.length < 2) return;
  box.append(element("p", `Reads KV head ${kvHead}, as these do:`));
  for (const each of heads) {
    const button = document.createElement("button");
    const canvas = document.createElement("canvas");
    button.type = "button";
    button.setAttribute("aria-current", String(each === head));
    button.setAttribute("aria-label", nameOf(each));
    button.append(canvas, element("span", String(each.index)));
    button.addEventListener("click", () => change({ head: each.index }));
    drawThumb(canvas, each);
    box.append(button);
  }
}

// The chosen weight as a sentence, above the map. Its line is always there, so that the map keeps its place.
async function saySo(head, other) {
  await head.ready();
  await other?.ready();
  const isBoth = state.query >= 0 && state.key >= 0 && state.view === "map";
  byId("said").textContent = isBoth ? `${said(head, state.query, state.key, other).sentence}.` : "Choose a cell, or a word at an edge.";
}

function pooledWords(head) {
  const level = maps[0]?.shown?.level;
  if (!level) return "";
  if (level.pool === 1) return level.exact ? "Every cell is one weight, exact." : "Every cell is one weight in 8 bits; the largest of every row are exact.";
  const what = state.kind === "max" ? "largest" : "mean";
  const isFinest = level === head.finest;
  return `Pooled: every cell is the ${what} of ${level.pool} × ${level.pool} weights, in 8 bits.${isFinest && head.facts.top ? ` The page has no finer level; the ${head.facts.top.count} largest weights of every row are exact.` : " Zoom in for finer ones."}`;
}

// What there is to choose depends on what is shown.
function showChoices(head, other) {
  const { view } = state;
  for (const each of ["map", "text", "lines", "table"]) byId(each === "map" ? "maps" : each).hidden = view !== each;
  const choices = comparable(head);
  byId("compare-label").hidden = choices.length === 0 || view !== "map";
  const compare = byId("compare");
  compare.replaceChildren(new Option("nothing", "-1"), ...choices.map((each) => new Option(runName(each.run), String(each.run))));
  compare.value = String(other ? other.run : -1);
  byId("zoom-buttons").hidden = view !== "map";
  byId("direction").hidden = view !== "text";
  byId("most-label").hidden = byId("whose").hidden = view !== "lines";
  byId("said").hidden = view !== "map";
  const isChosen = (state.direction === "to" ? state.query : state.key) >= 0;
  byId("direction").classList.toggle("waiting", !isChosen); // with nothing chosen neither is shown
}

let shownHead = "";
export function drawDetail(head) {
  const other = otherHead(head);
  byId("head-name").textContent = nameOf(head);
  byId("previous").setAttribute("aria-disabled", String(head === allHeads[0]));
  byId("next").setAttribute("aria-disabled", String(head === allHeads[allHeads.length - 1]));
  showChoices(head, other);
  const as = JSON.stringify([head.run, head.layer, head.index, state.theme, state.scale, state.span, state.kind, state.compare]);
  if (as !== shownHead) {
    showGroup(head);
    showNumbers(byId("numbers"), head);
    showProfile(byId("profile"), head);
    shownHead = as;
  }
  byId("pooled").textContent = "";
  if (state.view === "map") makeMaps(head, other);
  legendOf(head, other);
  if (state.view === "map") {
    maps.forEach((map) => map.draw());
    byId("pooled").textContent = pooledWords(head);
  } else {
    head.ready().then(() => {
      if (state.view === "text") drawText(head);
      if (state.view === "lines") drawLines(head);
      if (state.view === "table") drawTable(head);
      legendOf(head, other);
    });
  }
  saySo(head, other);
  showChosen(head);
}

byId("compare").addEventListener("change", () => change({ compare: Number(byId("compare").value) }));
byId("zoom-in").addEventListener("click", () => maps[0]?.zoomAt(1.6));
byId("zoom-out").addEventListener("click", () => maps[0]?.zoomAt(1 / 1.6));
byId("zoom-all").addEventListener("click", () => change({ x: 0, y: 0, zoom: 1 }));
