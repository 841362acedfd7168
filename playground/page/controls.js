// SPDX-License-Identifier: Apache-2.0
// What can be chosen: sizes, numbers and masks that need no drawing.
import { asDigits, cacheTypes, change, hiddenPairs, kvChoices, limits, startOver, state, words } from "./state.js";

const at = (id) => document.getElementById(id);

function fill(id, options) {
  at(id).replaceChildren(
    ...options.map(([value, text]) => {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = text;
      return option;
    }),
  );
}

const masks = {
  none: ["None", () => false],
  causal: ["Causal", (query, key) => key > query],
  window: ["The last three", (query, key) => key > query || key < query - 2],
  self: ["All but itself", (query, key) => key === query],
  drawn: ["Drawn by hand", null],
};

function pairsOf(hides, count) {
  return Uint8Array.from({ length: count * count }, (_, i) => (hides(Math.floor(i / count), i % count) ? 1 : 0));
}

function maskName(count) {
  const found = Object.entries(masks).find(([, [, hides]]) => hides && asDigits(pairsOf(hides, count)) === asDigits(hiddenPairs(count)));
  return found ? found[0] : "drawn";
}

export function buildControls() {
  fill("heads", limits.heads.map((n) => [n, n]));
  fill("dim", limits.dims.map((n) => [n, n]));
  fill("cacheType", cacheTypes.map((name) => [name, name]));
  fill("mask", Object.entries(masks).map(([name, [text]]) => [name, text]));
  for (const id of ["heads", "kvHeads", "dim"]) at(id).addEventListener("change", () => change({ [id]: Number(at(id).value) }));
  for (const id of ["tokens", "scale", "softcap", "cacheType"]) at(id).addEventListener("change", () => change({ [id]: at(id).value }));
  at("mask").addEventListener("change", () => {
    const hides = masks[at("mask").value]?.[1];
    if (hides) change({ hidden: asDigits(pairsOf(hides, words().length)) });
    else change({ tool: "draw" });
  });
  for (const button of at("tool").children) button.addEventListener("click", () => change({ tool: button.dataset.tool }));
  at("theme").addEventListener("click", () => change({ theme: state.theme === "dark" ? "light" : "dark" }));
  at("start-over").addEventListener("click", startOver);
}

export function drawControls(count) {
  const kind = (kv) => (kv === state.heads ? "MHA" : kv === 1 ? "MQA" : "GQA");
  fill("kvHeads", kvChoices(state.heads).map((kv) => [kv, `${kv} (${kind(kv)})`]));
  for (const id of ["tokens", "heads", "kvHeads", "dim", "scale", "softcap", "cacheType"]) at(id).value = state[id];
  at("scale").placeholder = (1 / Math.sqrt(state.dim)).toFixed(3);
  at("mask").value = maskName(count);
  at("map").classList.toggle("drawing", state.tool === "draw");
  for (const button of at("tool").children) button.setAttribute("aria-checked", String(button.dataset.tool === state.tool));
  document.documentElement.dataset.theme = state.theme;
}
