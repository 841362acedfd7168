// SPDX-License-Identifier: Apache-2.0
// Puts the parts together: what is chosen decides what is drawn.
import { buildAbout } from "./about.js";
import { attention } from "./blobs.js";
import { drawDetail } from "./detail.js";
import { drawGrid, drawGridChoices, largestThumb } from "./grid.js";
import { allHeads, headAt } from "./head.js";
import { buildHelp, step } from "./keyboard.js";
import { change, onChange, readAddress, renderSoon, state } from "./state.js";

// A row of buttons of which one is pressed.
function choice(id, name, options) {
  const box = document.getElementById(id);
  const buttons = options.map(([value, text, title]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.title = title;
    button.dataset.value = value;
    button.addEventListener("click", () => change({ [name]: value }));
    return button;
  });
  box.append(...buttons);
  onChange(() => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === state[name]))));
}

choice("span", "span", [["own", "Own range", "Colours end at the largest weight of what is shown"], ["one", "0 to 1", "Colours end at 1, everywhere"]]);
choice("scale", "scale", [["linear", "Linear", "Colour in proportion to the weight (S)"], ["log", "Log", "Colour by the weight’s logarithm (S)"]]);
choice("pooling", "kind", [["max", "Largest", "A pooled cell shows the largest of its weights"], ["mean", "Mean", "A pooled cell shows the mean of its weights"]]);
choice("views", "view", [["map", "Map", "Every query by every key (M)"], ["text", "Text", "The text, coloured (T)"], ["lines", "Lines", "Lines between tokens (I)"], ["table", "Table", "What every query looks at most (B)"]]);
choice("direction", "direction", [["to", "Looks at", "What the chosen token looks at"], ["from", "Looked at by", "Who looks at the chosen token"]]);
choice("whose", "heads", [["one", "This head", "Lines of this head"], ["all", "All heads of this layer", "Lines of all heads of the layer, in colours"]]);
document.getElementById("pooling").hidden = !allHeads.some((head) => Math.max(head.queries, head.keys) > largestThumb); // nothing is pooled

document.getElementById("title").textContent = attention.title;
document.getElementById("home").addEventListener("click", () => change({ head: -1 }));
document.getElementById("theme").addEventListener("click", () => change({ theme: state.theme === "dark" ? "light" : "dark" }));
document.getElementById("help-button").addEventListener("click", () => document.getElementById("help").showModal());
document.getElementById("all-heads").addEventListener("click", () => change({ head: -1 }));
document.getElementById("previous").addEventListener("click", () => step(-1));
document.getElementById("next").addEventListener("click", () => step(1));
buildHelp();
buildAbout();

// All heads are found again where they were left, and the keyboard at the head that was open.
const overview = document.getElementById("overview");
const tables = () => [...overview.querySelectorAll(".scroll")];
let left = { page: 0, box: 0, tables: [], head: null };
function arrive(head) {
  if (head) return scrollTo(0, 0);
  overview.scrollTop = left.box;
  tables().forEach((table, n) => table.scrollTo(...(left.tables[n] ?? [0, 0])));
  scrollTo(0, left.page);
  const { run, layer, index } = left.head;
  return document.querySelector(`.thumb[data-run="${run}"][data-layer="${layer}"][data-head="${index}"]`)?.focus({ preventScroll: true });
}
history.scrollRestoration = "manual";

onChange(() => {
  document.documentElement.dataset.theme = state.theme;
  const head = headAt(state.run, state.layer, state.head);
  const isElsewhere = overview.hidden !== Boolean(head);
  if (isElsewhere && head) left = { page: scrollY, box: overview.scrollTop, tables: tables().map((table) => [table.scrollLeft, table.scrollTop]) };
  if (head) left.head = head;
  document.getElementById("extent").textContent = `${allHeads.length.toLocaleString("en")} head${allHeads.length === 1 ? "" : "s, counted from 0"}`;
  overview.hidden = Boolean(head);
  document.getElementById("detail").hidden = !head;
  document.getElementById("tip").hidden = true;
  drawGridChoices();
  if (head) drawDetail(head);
  else drawGrid();
  if (isElsewhere) arrive(head);
});
addEventListener("resize", renderSoon);
if (globalThis.DecompressionStream) readAddress();
else document.getElementById("missing").hidden = false;
