// SPDX-License-Identifier: Apache-2.0
// One head, large: its map (or three, where two runs are compared), what it is in numbers, and the chosen token.
import { attention } from "./blobs.js";
import { codes, pixelOfDifference, pixelsOfCodes } from "./colour.js";
import { drawThumb } from "./grid.js";
import { digitsOf } from "./digits.js";
import { endOfScale, groupOf, headAt, nameOf } from "./head.js";
import { Heatmap } from "./heatmap.js";
import { drawLines } from "./lines.js";
import { showNumbers, showProfile } from "./profile.js";
import { change, state } from "./state.js";
import { drawText } from "./text.js";
import { tokensOf } from "./tokens.js";
import { shortened, visible } from "./visible.js";

const byId = (id) => document.getElementById(id);
const tip = byId("tip");
export let maps = [];
let shownMaps = "";

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

// The runs that have such a head over as many queries and keys.
function comparable(head) {
  return attention.runs.map((_, r) => headAt(r, head.layer, head.index)).filter((other) => other && other.run !== head.run && other.queries === head.queries && other.keys === head.keys);
}

function otherHead(head) {
  return comparable(head).find((other) => other.run === state.compare) ?? null;
}

// What is known of a weight, in words.
function wordsFor(map, query, key) {
  const known = map.head.at(query, key);
  const other = map.other?.at(query, key);
  if (known.hidden && (!other || other.hidden)) return { value: "hidden", more: "by a mask" };
  if (other) {
    const a = known.hidden ? 0 : known.weight;
    const b = other.hidden ? 0 : other.weight;
    return { value: `${a - b > 0 ? "+" : ""}${(a - b).toPrecision(6)}`, more: `${digitsOf(a)} − ${digitsOf(b)}${known.exact && other.exact ? "" : ", about"}` };
  }
  if (known.exact) return { value: digitsOf(known.weight), more: "" };
  if (known.pool === 1) return { value: `≈ ${known.max.toPrecision(2)}`, more: "to within 3 %" };
  return { value: `≤ ${known.max.toPrecision(2)}`, more: `its ${known.pool} × ${known.pool} weights: largest ${known.max.toPrecision(2)}, mean ${known.mean.toPrecision(2)}, to within 3 %` };
}

function hover(map, event) {
  const cell = event && map.cellAt(event.clientX, event.clientY);
  tip.hidden = !cell || !(map.head.all || map.head.max);
  if (tip.hidden) return;
  const { queries, keys } = tokensOf[map.head.run];
  const { value, more } = wordsFor(map, cell.query, cell.key);
  const pair = document.createElement("div");
  pair.append(element("bdi", shortened(visible(queries[cell.query]), 40)), " → ", element("bdi", shortened(visible(keys[cell.key]), 40)));
  tip.replaceChildren(element("b", value), pair, element("div", `query ${cell.query}, key ${cell.key}${more ? ` · ${more}` : ""}`, "quiet"));
  tip.style.left = `${Math.min(event.clientX + 16, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
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
    const nameOfRun = (each) => attention.runs[each.run].name || `Run ${each.run}`;
    if (other) caption.append(theirs ? element("b", `${nameOfRun(mine)} − ${nameOfRun(theirs)}`) : element("b", nameOfRun(mine)));
    const canvas = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Map of ${nameOf(mine)}${theirs ? `, less ${nameOf(theirs)}` : ""}: ${mine.queries} queries by ${mine.keys} keys`);
    const frame = element("div", "", "frame");
    frame.append(canvas);
    figure.append(caption, frame);
    byId("maps").append(figure);
    const map = new Heatmap(canvas, mine, theirs, hover);
    if (other && !theirs) map.compared = mine === head ? other : head;
    return map;
  });
  Promise.all([head.ready(), other?.ready()]).then(() => {
    maps.forEach((map) => map.draw());
    showLegend(head, other);
  });
}

function colourBar(pixelAt, texts) {
  const canvas = document.createElement("canvas");
  canvas.width = 256;
  canvas.height = 1;
  const image = new ImageData(256, 1);
  new Uint32Array(image.data.buffer).set(Uint32Array.from({ length: 256 }, (_, n) => pixelAt(n)));
  canvas.getContext("2d").putImageData(image, 0, 0);
  const ends = element("div", "", "ends");
  ends.append(...texts.map((text) => element("span", text)));
  const box = document.createElement("div");
  box.append(canvas, ends);
  return box;
}

function showLegend(head, other) {
  const dark = state.theme === "dark";
  const largest = endOfScale(head, ...(other ? [other] : []));
  const byCode = pixelsOfCodes({ scale: "log", largest: 1, octaves: attention.octaves, dark });
  const least = state.scale === "linear" ? "0" : "10⁻⁶";
  const name = state.scale === "linear" ? "weight" : "weight, logarithmic";
  const bars = [colourBar((n) => byCode[Math.max(codes.least, Math.round((n / 255) * codes.one))], [least, name, largest.toPrecision(3)])];
  if (other) {
    const difference = head.largestDifference(other) || 1;
    bars.push(colourBar((n) => pixelOfDifference((n - 128) / 127, 1, dark), [`−${difference.toPrecision(3)}`, "difference", `+${difference.toPrecision(3)}`]));
  }
  const swatches = element("div", "", "swatches");
  const swatch = (className, text) => {
    const made = document.createElement("span");
    made.append(element("span", "", `swatch ${className}`), text);
    swatches.append(made);
  };
  if (head.facts.seen < head.queries * head.keys) swatch("hidden-cell", "hidden by a mask");
  if (head.facts.not_finite > 0) swatch("not-finite", "NaN or infinite");
  byId("legend").replaceChildren(...bars, swatches);
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

async function showChosen(head) {
  const box = byId("chosen");
  const wanted = JSON.stringify([state.query, state.key, state.direction]);
  await head.ready();
  if (wanted !== JSON.stringify([state.query, state.key, state.direction])) return;
  box.replaceChildren();
  const { queries, keys } = tokensOf[head.run];
  const heading = document.createElement("h2");
  let found;
  if (state.direction === "to" || state.key < 0) {
    if (state.query < 0) {
      heading.textContent = "Choose a token: click the map, the text or a line.";
      box.append(heading);
      return;
    }
    heading.append(`Query ${state.query} `, element("b", visible(queries[state.query])), " attends to");
    found = head.largestOf(state.query, 8).map(([key, weight]) => [keys[key], key, weight]);
  } else {
    heading.append(`Key ${state.key} `, element("b", visible(keys[state.key])), " is attended to by");
    found = Array.from(head.column(state.key), (weight, query) => [queries[query], query, weight]).filter(([, , weight]) => weight > 0).sort((a, b) => b[2] - a[2]).slice(0, 8);
  }
  const list = document.createElement("ol");
  for (const [token, n, weight] of found) {
    const item = document.createElement("li");
    const name = document.createElement("div");
    name.append(element("bdi", visible(token)), element("small", String(n)));
    const bar = document.createElement("i");
    bar.style.width = `${Math.min(100, 100 * weight)}%`;
    const track = document.createElement("div");
    track.append(bar);
    item.append(name, track, element("span", digitsOf(weight)));
    list.append(item);
  }
  box.append(heading, list);
  if (state.query >= 0 && state.key >= 0) {
    const { value, more } = wordsFor({ head }, state.query, state.key);
    box.append(element("p", `Query ${state.query} to key ${state.key}: ${value}${more ? ` (${more})` : ""}`, "quiet cell"));
  }
}

function pooledWords(head) {
  const level = maps[0]?.shown?.level;
  if (!level) return "";
  if (level.pool === 1) return level.exact ? "Every cell is one weight, exact." : "Every cell is one weight in 8 bits; the largest of every row are exact.";
  const what = state.kind === "max" ? "largest" : "mean";
  const isFinest = level === head.finest;
  return `Pooled: every cell is the ${what} of ${level.pool} × ${level.pool} weights, in 8 bits.${isFinest && head.facts.top ? ` The page has no finer level; the ${head.facts.top.count} largest weights of every row are exact.` : " Zoom in for finer ones."}`;
}

let shownHead = "";
export function drawDetail(head) {
  const other = otherHead(head);
  byId("head-name").textContent = nameOf(head);
  for (const view of ["map", "text", "lines"]) byId(view === "map" ? "maps" : view).hidden = state.view !== view;
  const choices = comparable(head);
  byId("compare-label").hidden = choices.length === 0 || state.view !== "map";
  const compare = byId("compare");
  compare.replaceChildren(new Option("nothing", "-1"), ...choices.map((each) => new Option(attention.runs[each.run].name || `Run ${each.run}`, String(each.run))));
  compare.value = String(other ? other.run : -1);
  byId("zoom-buttons").hidden = state.view !== "map";
  const as = JSON.stringify([head.run, head.layer, head.index, state.theme, state.scale, state.kind, state.compare]);
  if (as !== shownHead) {
    showGroup(head);
    showLegend(head, other);
    showNumbers(byId("numbers"), head);
    showProfile(byId("profile"), head);
    shownHead = as;
  }
  byId("direction").hidden = state.view !== "text";
  byId("pooled").textContent = "";
  if (state.view === "map") {
    makeMaps(head, other);
    maps.forEach((map) => map.draw());
    byId("pooled").textContent = pooledWords(head);
  } else {
    head.ready().then(() => {
      if (state.view === "text") drawText(head);
      if (state.view === "lines") byId("pooled").textContent = drawLines(head) ?? "";
    });
  }
  showChosen(head);
}

byId("compare").addEventListener("change", () => change({ compare: Number(byId("compare").value) }));
byId("zoom-in").addEventListener("click", () => maps[0]?.zoomAt(1.6));
byId("zoom-out").addEventListener("click", () => maps[0]?.zoomAt(1 / 1.6));
byId("zoom-all").addEventListener("click", () => change({ x: 0, y: 0, zoom: 1 }));
