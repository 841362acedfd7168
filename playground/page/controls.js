// SPDX-License-Identifier: Apache-2.0
// What can be chosen: sizes, numbers and masks that need no drawing.
import { byId } from "../../view/page/dom.js";
import { glossaryList } from "../../view/page/glossary.js";
import { digitsFor, masks } from "./masks.js";
import { model } from "./model.js";
import { cacheTypes, change, chooseSource, isFloat, kvChoices, limits, maskName, refuseNumber, startOver, state, words } from "./state.js";

function fill(id, options) {
  byId(id).replaceChildren(
    ...options.map(([value, text]) => {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = text;
      return option;
    }),
  );
}

function changeNumber({ target }) {
  if (target.validity.badInput || !isFloat(Number(target.value))) refuseNumber(target.value);
  else change({ [target.id]: target.value });
}

export function buildControls() {
  fill("heads", limits.heads.map((n) => [n, n]));
  fill("source", [[-1, "Your own words"], ...model.sentences.map(({ text }, n) => [n, text])]);
  byId("source").addEventListener("change", () => chooseSource(Number(byId("source").value)));
  fill("cacheType", cacheTypes.map((name) => [name, name]));
  fill("mask", Object.entries(masks).map(([name, [text]]) => [name, text]));
  for (const id of ["heads", "kvHeads", "dim"]) byId(id).addEventListener("change", () => change({ [id]: Number(byId(id).value) }));
  for (const id of ["scale", "softcap"]) byId(id).addEventListener("change", changeNumber);
  byId("tokens").addEventListener("input", () => change({ tokens: byId("tokens").value }));
  byId("cacheType").addEventListener("change", () => change({ cacheType: byId("cacheType").value }));
  byId("mask").addEventListener("change", () => {
    const name = byId("mask").value;
    if (masks[name][1]) change({ mask: name, hidden: digitsFor(name, words().length) });
    else change({ mask: name, tool: "draw" });
  });
  for (const button of byId("tool").children) button.addEventListener("click", () => change({ tool: button.dataset.tool }));
  byId("theme").addEventListener("click", () => change({ theme: state.theme === "dark" ? "light" : "dark" }));
  byId("words").append(glossaryList());
  byId("start-over").addEventListener("click", startOver);
}

export function drawControls() {
  const kind = (kv) => (kv === state.heads ? "MHA" : kv === 1 ? "MQA" : "GQA");
  fill("kvHeads", kvChoices(state.heads).map((kv) => [kv, `${kv} (${kind(kv)})`]));
  const isReal = state.source >= 0;
  fill("dim", (isReal ? [state.dim] : limits.dims).map((n) => [n, n]));
  for (const id of ["heads", "dim"]) byId(id).disabled = isReal;
  byId("vectors-hint").textContent = isReal ? "Blue is above 0, orange below. Touch a key: its products with the query add up." : "Every number of a vector can be changed.";
  for (const id of ["source", "tokens", "heads", "kvHeads", "dim", "scale", "softcap", "cacheType"]) {
    if (byId(id).value !== String(state[id])) byId(id).value = state[id]; // what is being typed keeps its place
  }
  byId("scale").placeholder = (1 / Math.sqrt(state.dim)).toFixed(3);
  byId("mask").value = maskName();
  byId("map").classList.toggle("drawing", state.tool === "draw");
  for (const button of byId("tool").children) button.setAttribute("aria-pressed", String(button.dataset.tool === state.tool));
  document.documentElement.dataset.theme = state.theme;
  document.body.classList.toggle("alone", state.alone === 1);
}
