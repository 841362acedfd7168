// SPDX-License-Identifier: Apache-2.0
// A head in numbers, and how far away it looks.
import { attention } from "./blobs.js";
import { element } from "./dom.js";
import { percent } from "./words.js";

// A number that no double holds is null in the page's description.
const bits = (n) => (n === null ? "beyond numbers" : `${n.toFixed(2)} bits`);

const asShare = { isShare: true, unit: "%, or a share of 1", bounds: { from: "50", to: "100" } };

// What heads are ordered and filtered by, in the words of the two menus; `bounds` are examples of what to filter by in its
// `unit`, `note` explains the number at length, and `aside` why it may be large.
export const measures = [
  {
    id: "entropy", unit: "bits", bounds: { from: "0", to: "3" }, name: "Entropy", of: (facts) => facts.entropy, text: bits,
    most: "most spread out first", range: "by how spread out",
    hint: "how many keys a query spreads over: 2 to this power, on average",
    note: "how far a query spreads. 0 bits: it looks at one key; 1 bit: as if at 2, 3 bits: at 8, n bits: at 2ⁿ equally",
  },
  {
    id: "first", ...asShare, name: "On the first token", of: (facts) => facts.first, text: percent,
    most: "most on the first token", range: "by weight on the first token",
    hint: "mean weight on token 0", aside: "heads that find nothing to look at rest there",
    note: "mean weight on token 0. Heads that find nothing to look at rest there, because every query sees it",
  },
  {
    id: "self", ...asShare, name: "On itself", of: (facts) => facts.back[0] ?? 0, text: percent, needsPositions: true,
    most: "most on itself", range: "by weight on itself",
    hint: "mean weight of a query’s own position",
  },
  {
    id: "previous", ...asShare, name: "On the token before", of: (facts) => facts.previous, text: percent, needsPositions: true,
    most: "most on the token before", range: "by weight on the token before",
    hint: "mean weight on the token before",
  },
  {
    id: "distance", unit: "tokens", bounds: { from: "0", to: "10" }, name: "Mean distance", of: (facts) => facts.distance, text: (n) => `${n.toFixed(n < 10 ? 2 : 1)} tokens`, needsPositions: true,
    most: "farthest looking first", range: "by mean distance",
    hint: "between a query and what it looks at, by weight",
  },
  {
    id: "largest", ...asShare, name: "Largest weight", of: (facts) => facts.largest, text: (n) => n.toPrecision(3),
    most: "largest weight first", range: "by largest weight",
    hint: "of all queries and keys",
  },
];

function measuresOf(run) {
  return measures.filter((measure) => !measure.needsPositions || attention.runs[run].first_position !== null);
}

function entry(list, name, text, { hint = "", isWarning = false } = {}) {
  const term = document.createElement("dt");
  const value = document.createElement("dd");
  term.textContent = name;
  term.title = hint;
  value.textContent = text;
  if (isWarning) value.className = "warn";
  list.append(term, value);
  return value;
}

export function showNumbers(list, head) {
  list.replaceChildren();
  for (const measure of measuresOf(head.run)) {
    const value = entry(list, measure.name, measure.text(measure.of(head.facts)), measure);
    value.dataset.measure = measure.id;
    if (measure.aside) value.previousElementSibling.append(element("small", measure.aside));
  }
  const { least_sum: least, greatest_sum: greatest, not_finite: notFinite, seen } = head.facts;
  const hidden = head.queries * head.keys - seen;
  if (hidden > 0) entry(list, "Hidden by masks", percent(hidden / (head.queries * head.keys)));
  if (Math.max(Math.abs(least - 1), Math.abs(greatest - 1)) > 1e-3) entry(list, "Rows sum to", `${least.toPrecision(4)} … ${greatest.toPrecision(4)}`, { isWarning: true, hint: "weights of attention sum to one" });
  if (notFinite > 0) entry(list, "Not finite", notFinite.toLocaleString("en"), { isWarning: true, hint: "weights that are NaN or infinite" });
}

const svg = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

// The distances of a bin: 1, 2–3, 4–7 and so on.
function rangeName(bin) {
  if (bin <= 1) return String(bin);
  const short = (n) => (n >= 1024 ? `${Math.floor(n / 1024)}k` : String(n));
  return bin > 9 ? `${short(2 ** (bin - 1))}+` : `${2 ** (bin - 1)}–${2 ** bin - 1}`;
}

// Bars of mass by distance, behind to the left and ahead to the right of the query's own position.
export function showProfile(figure, head) {
  figure.replaceChildren();
  if (attention.runs[head.run].first_position === null) return;
  const { back, ahead } = head.facts;
  const bars = [];
  for (let bin = back.length - 1; bin >= 0; --bin) bars.push({ name: rangeName(bin), where: bin === 0 ? "itself" : `${rangeName(bin)} before`, mass: back[bin] });
  for (let bin = 1; bin < ahead.length; ++bin) bars.push({ name: rangeName(bin), where: `${rangeName(bin)} after`, mass: ahead[bin] });
  const caption = document.createElement("figcaption");
  caption.textContent = `How far it looks: weight by distance in tokens${ahead.length > 1 ? ", ← before and after →" : " before"}; 0 is itself`;
  const width = 284;
  const height = 70;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height + 14}`, role: "img" });
  drawing.setAttribute("aria-label", `Weight by distance: ${bars.map((bar) => `${bar.where}: ${percent(bar.mass)}`).join(", ")}`);
  drawing.append(svg("line", { x1: 0, x2: width, y1: height + 0.5, y2: height + 0.5 }));
  const step = width / Math.max(6, bars.length);
  const every = Math.ceil((5.4 * Math.max(...bars.map((bar) => bar.name.length)) + 5) / step); // names have room
  const own = bars.findIndex((each) => each.name === "0");
  const most = Math.max(...bars.map((bar) => bar.mass), 1e-9);
  bars.forEach((bar, n) => {
    const tall = Math.max(bar.mass > 0 ? 1 : 0, (height - 4) * (bar.mass / most));
    const box = svg("rect", { x: n * step + 1.5, width: Math.max(1, step - 3), y: height - tall, height: tall, rx: 1.5 });
    const title = svg("title", {});
    title.textContent = `${bar.where}: ${percent(bar.mass)}`;
    box.append(title);
    const label = svg("text", { x: (n + 0.5) * step, y: height + 11, "text-anchor": "middle" });
    label.textContent = (n - own) % every === 0 ? bar.name : "";
    drawing.append(box, label);
  });
  figure.append(caption, drawing);
}
