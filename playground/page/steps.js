// SPDX-License-Identifier: Apache-2.0
// One query, from its vector to its result: scores, softmax and sum, with every number.
import { cssColour, pixelOfDifference } from "../../view/page/colour.js";
import { digitsOf } from "../../view/page/digits.js";
import { byId } from "../../view/page/dom.js";
import { visible } from "../../view/page/visible.js";
import { lessons } from "./lessons.js";
import { digits } from "./map.js";
import { redraw } from "./redraw.js";
import { change, isFloat, refuseNumber, state, words } from "./state.js";
import { editsWith, placeOf } from "./vectors.js";

function part(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// A vector too long for numbers: a band for each, blue above 0 and orange below.
function bands(floats) {
  const row = part("div", "", "bands");
  const largest = Math.max(...floats.map(Math.abs));
  for (const x of floats) {
    const band = part("i");
    band.title = digits(x);
    const pixel = pixelOfDifference(x, largest, state.theme === "dark");
    band.style.background = `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`;
    row.append(band);
  }
  return row;
}

// The numbers of a vector, each of which can be changed.
function inputs(kind, head, token, floats) {
  const cell = part("td", "", `vector ${kind}`);
  if (state.source >= 0) {
    const from = placeOf(head, token, 0, words().length);
    cell.dataset.token = token;
    cell.append(bands(floats.subarray(from, from + state.dim)));
    return cell;
  }
  const row = part("div", "", "numbers");
  for (let d = 0; d < state.dim; ++d) {
    const input = document.createElement("input");
    input.type = "number";
    input.step = "0.1";
    input.defaultValue = digitsOf(floats[placeOf(head, token, d, words().length)]);
    input.dataset.place = `${kind}.${head}.${token}.${d}`;
    input.setAttribute("aria-label", `${{ q: "Query", k: "Key", v: "Value" }[kind]} of token ${token}, number ${d}`);
    row.append(input);
  }
  cell.append(row);
  return cell;
}

const stepsBox = document.getElementById("steps");
for (const touched of ["pointerover", "click"]) stepsBox.addEventListener(touched, sayProducts);
stepsBox.addEventListener("change", ({ target }) => {
  const text = target.value;
  if (!isFloat(target.valueAsNumber)) {
    target.value = target.defaultValue;
    return refuseNumber(text);
  }
  target.value = digitsOf(target.valueAsNumber);
  return change({ edits: editsWith(target.dataset.place, target.value) });
});

// What a key's products with the query add up to: the largest by name, the others together.
let onPage = null; // the vectors
function sayProducts({ target }) {
  const cell = target.closest?.("td.k[data-token]");
  if (!cell || !onPage) return;
  const count = words().length;
  const token = Number(cell.dataset.token);
  const [asks, offers] = [placeOf(state.head, state.query, 0, count), placeOf(Math.floor(state.head / (state.heads / state.kvHeads)), token, 0, count)];
  const products = Array.from({ length: state.dim }, (_, d) => onPage.q[asks + d] * onPage.k[offers + d]);
  const largest = [...products].sort((a, b) => Math.abs(b) - Math.abs(a)).slice(0, 3);
  const sum = products.reduce((a, b) => a + b, 0);
  const rest = sum - largest.reduce((a, b) => a + b, 0);
  const said = byId("products");
  said.replaceChildren(bands(products), `“${words()[token]}”: ${largest.map(digits).join(" + ")} + ${digits(rest)} (${state.dim - 3} others) = ${digits(sum)}, the score before its scale`);
}

function numbers(floats) {
  const cell = part("td", "", "vector");
  if (state.source >= 0) {
    cell.append(bands(floats));
    return cell;
  }
  const row = part("div", "", "numbers");
  for (const x of floats) row.append(part("output", digits(x)));
  cell.append(row);
  return cell;
}

// Where the columns do not all fit beside each other, the numbers of a word come before its vectors.
const isNarrow = matchMedia("(max-width: 1000px)");
isNarrow.addEventListener("change", () => change({}));

function headed(name, { how, title, kind }) {
  const cell = part("th", name, kind);
  cell.scope = "col";
  cell.title = title;
  cell.append(part("small", how));
  return cell;
}

function rowName(text) {
  const cell = part("th", text);
  cell.scope = "row";
  return cell;
}

function weightCell(weight) {
  const cell = part("td", digits(weight), "weight");
  cell.title = digitsOf(weight);
  const bar = part("i");
  bar.style.width = `${100 * Math.min(1, weight || 0)}%`;
  bar.style.background = cssColour(0.7, state.theme === "dark");
  cell.append(bar);
  return cell;
}

// The steps of the chosen query over all keys.
function stepsOf(found) {
  const { head, query } = state;
  const count = words().length;
  const row = (head * count + query) * count;
  const scores = Array.from(found.masked.subarray(row, row + count));
  const largest = Math.max(...scores);
  const exponentials = scores.map((score) => (score === -Infinity ? 0 : Math.exp(score - largest)));
  return { scores, exponentials, raw: found.raw.subarray(row, row + count), capped: found.softcapped.subarray(row, row + count), weights: found.weights.subarray(row, row + count) };
}

// What stands in each column: its name, how it comes about and why, and the cell of a key.
function columnsOf(problem, vectors, steps) {
  const kv = Math.floor(state.head / (state.heads / state.kvHeads));
  const scale = Number.isNaN(problem.scale) ? 1 / Math.sqrt(state.dim) : problem.scale;
  const number = (floats, kind) => (key) => part("td", digits(floats[key]), kind);
  const cap = { name: "capped", how: "by softcap", title: "softcap × tanh(s / softcap)", kind: "score", cell: number(steps.capped, "score") };
  const key = { name: "key", how: "k", title: "its key: what it offers to be found by", kind: "vector k", cell: (n) => inputs("k", kv, n, vectors.k) };
  const numbered = [
    { name: "score", how: `q·k×${digits(scale)}`, title: "how well the key answers the query", kind: "score", cell: number(steps.raw, "score") },
    ...(Number.isNaN(problem.softcap) ? [] : [cap]),
    { name: "masked", how: "by mask", title: "the score, −∞ where the mask hides the key", kind: "score masked", cell: number(steps.scores, "score masked") },
    { name: "power", how: "e^(s−max)", title: "the exponential, of the difference to the largest score", kind: "share", cell: number(steps.exponentials, "share") },
    { name: "weight", how: "÷ sum", title: "the exponential divided by the sum of all", kind: "weight", cell: (n) => weightCell(steps.weights[n]) },
  ];
  const value = { name: "value", how: "v", title: "its value: the result is the sum of them, each times its weight", kind: "vector v", cell: (n) => inputs("v", kv, n, vectors.v) };
  if (!isNarrow.matches) return [key, ...numbered, value];
  const wanted = lessons[state.tour - 1]?.columns; // what is told stands in sight
  return wanted ? [key, ...numbered, value].filter(({ name }) => wanted.includes(name)) : [...numbered, key, value];
}

// The query itself, above what it looks at.
function askingLine(token, vectors, columns) {
  const line = part("tr", "", "asking");
  const name = rowName(token);
  const query = inputs("q", state.head, state.query, vectors.q);
  line.append(name, query);
  if (isNarrow.matches) {
    name.append(part("small", "its query q"));
    query.colSpan = columns.length;
  } else {
    const note = part("td", "← its query q: what it asks for", "quiet");
    note.colSpan = columns.length - 1;
    line.append(note);
  }
  return line;
}

// In place of the keys that are not shown.
function othersLine(count, columns) {
  const line = part("tr");
  const cell = part("td", `… and ${count} other words`, "quiet");
  cell.colSpan = 1 + columns.length;
  line.append(cell);
  return line;
}

// The sums below the columns that have one, and the result below the values.
function totalLine(steps, result, columns) {
  const line = part("tr", "", "total");
  const add = (floats) => Array.from(floats).reduce((a, b) => a + b, 0);
  const below = { power: () => part("td", digits(add(steps.exponentials)), "share"), weight: () => part("td", digits(add(steps.weights)), "weight"), value: () => result };
  const first = columns.findIndex(({ name }) => below[name]);
  const rest = first < 0 ? [] : columns.slice(first);
  const name = rowName("Sum of the column");
  name.colSpan = 1 + columns.length - rest.length;
  line.append(name, ...rest.map((column) => below[column.name]?.() ?? part("td")));
  return line;
}

export function drawSteps(problem, vectors, found, hidden) {
  const tokens = words().map(visible);
  const { head, query, dim } = state;
  const steps = stepsOf(found);
  onPage = vectors;
  if (state.source >= 0) stepsBox.tabIndex = 0; // bands take no keyboard, so what scrolls does
  else stepsBox.removeAttribute("tabindex");
  byId("products").replaceChildren();
  const columns = columnsOf(problem, vectors, steps);
  const headings = part("tr", "", "columns");
  headings.append(headed("word", { how: "looked at", title: "the token looked at", kind: "vector" }), ...columns.map((each) => headed(each.name, each)));
  const lesson = lessons[state.tour - 1];
  const told = isNarrow.matches && lesson?.keys && tokens.length > Math.max(...lesson.keys) ? lesson.keys : [...tokens.keys()];
  const lines = told.map((key) => {
    const line = part("tr", "", hidden[query * tokens.length + key] ? "unseen" : "");
    line.append(rowName(tokens[key]), ...columns.map(({ cell }) => cell(key)));
    return line;
  });
  const place = (head * tokens.length + query) * dim;
  const result = numbers(found.out.subarray(place, place + dim));
  result.id = "result";
  result.prepend(part("small", "Result: the sum of weight × v"));
  const table = part("table");
  const others = told.length < tokens.length ? [othersLine(tokens.length - told.length, columns)] : [];
  const sums = columns.some(({ name }) => ["power", "weight", "value"].includes(name)) ? [totalLine(steps, result, columns)] : [];
  table.append(askingLine(tokens[query], vectors, columns), headings, ...lines, ...others, ...sums);
  redraw(stepsBox, [table]);
  document.getElementById("sideways").hidden = stepsBox.scrollWidth <= stepsBox.clientWidth;
  document.getElementById("query-name").textContent = `“${tokens[query]}” in head ${head}`;
}
