// SPDX-License-Identifier: Apache-2.0
// Puts the parts together: what is chosen decides what is drawn.
import { attention } from "./blobs.js";
import { drawDetail } from "./detail.js";
import { drawGrid, drawGridChoices } from "./grid.js";
import { headAt } from "./head.js";
import { buildHelp, step } from "./keyboard.js";
import { change, onChange, readAddress, renderSoon, state } from "./state.js";

// A row of buttons of which one is chosen.
function choice(id, name, options, role = "radio") {
  const box = document.getElementById(id);
  const mark = role === "tab" ? "aria-selected" : "aria-checked";
  const buttons = options.map(([value, text, title]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("role", role);
    button.textContent = text;
    button.title = title;
    button.dataset.value = value;
    button.addEventListener("click", () => change({ [name]: value }));
    return button;
  });
  box.append(...buttons);
  onChange(() => buttons.forEach((button) => button.setAttribute(mark, String(button.dataset.value === state[name]))));
}

choice("scale", "scale", [["linear", "Linear", "Colour in proportion to the weight (S)"], ["log", "Log", "Colour by the weight's logarithm (S)"]]);
choice("pooling", "kind", [["max", "Largest", "A pooled cell shows the largest of its weights"], ["mean", "Mean", "A pooled cell shows the mean of its weights"]]);
choice("views", "view", [["map", "Map", "Every query by every key (M)"], ["text", "Text", "The text, coloured (T)"], ["lines", "Lines", "Lines between tokens (I)"]], "tab");
choice("direction", "direction", [["to", "Attends to", "What the chosen token attends to"], ["from", "Attended by", "Who attends to the chosen token"]]);

document.getElementById("title").textContent = attention.title;
document.getElementById("home").addEventListener("click", () => change({ head: -1 }));
document.getElementById("theme").addEventListener("click", () => change({ theme: state.theme === "dark" ? "light" : "dark" }));
document.getElementById("help-button").addEventListener("click", () => document.getElementById("help").showModal());
document.getElementById("previous").addEventListener("click", () => step(-1));
document.getElementById("next").addEventListener("click", () => step(1));
buildHelp();

onChange(() => {
  document.documentElement.dataset.theme = state.theme;
  const head = headAt(state.run, state.layer, state.head);
  const heads = attention.runs.reduce((sum, run) => sum + run.layers.reduce((n, layer) => n + layer.heads.length, 0), 0);
  document.getElementById("extent").textContent = `${heads.toLocaleString("en")} head${heads === 1 ? "" : "s"}`;
  document.getElementById("overview").hidden = Boolean(head);
  document.getElementById("detail").hidden = !head;
  document.getElementById("tip").hidden = true;
  drawGridChoices();
  if (head) drawDetail(head);
  else drawGrid();
});
addEventListener("resize", renderSoon);
readAddress();
