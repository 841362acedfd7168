// SPDX-License-Identifier: Apache-2.0
// The text itself, coloured by what the chosen token attends to, or by who attends to it.
import { attention } from "./blobs.js";
import { cssColour, inkOn, strength } from "./colour.js";
import { digitsOf } from "./digits.js";
import { change, state } from "./state.js";
import { tokensOf } from "./tokens.js";
import { areWords, asProse, visible } from "./visible.js";

const panel = document.getElementById("text");
let built = null; // the run whose tokens stand there
let spans = { queries: [], keys: [] };

function passage(tokens, onChoose) {
  const paragraph = document.createElement("div");
  paragraph.className = areWords(tokens) ? "passage words" : "passage";
  const made = tokens.map((token, n) => {
    const span = document.createElement("span");
    span.textContent = areWords(tokens) ? visible(token) : asProse(token);
    span.dir = "auto";
    span.addEventListener("click", () => onChoose(n));
    paragraph.append(span);
    return span;
  });
  return { paragraph, made };
}

function heading(text) {
  const made = document.createElement("h2");
  made.textContent = text;
  return made;
}

// One passage where queries and keys are the same tokens, two where they are not.
function build(run) {
  const { queries, keys } = tokensOf[run];
  const isOne = queries.length === keys.length && queries.every((token, n) => token === keys[n]);
  if (isOne) {
    const { paragraph, made } = passage(keys, (n) => change({ query: n, key: n }));
    panel.replaceChildren(paragraph);
    spans = { queries: made, keys: made };
  } else {
    const asking = passage(queries, (n) => change({ query: n, direction: "to" }));
    const asked = passage(keys, (n) => change({ key: n, direction: "from" }));
    panel.replaceChildren(heading("Queries"), asking.paragraph, heading("Keys"), asked.paragraph);
    spans = { queries: asking.made, keys: asked.made };
  }
  built = run;
}

// `isHiddenAt` tells what a mask hides from what is not a number.
function paint(made, weights, isHiddenAt = () => false) {
  const dark = state.theme === "dark";
  const largest = weights?.reduce((most, weight) => (weight > most && weight < Infinity ? weight : most), 0) || 1;
  made.forEach((span, n) => {
    const weight = weights?.[n] ?? 0;
    const isHidden = isHiddenAt(n);
    const isColoured = weight !== 0 && !isHidden;
    const t = Number.isFinite(weight) ? strength(weight, state.scale, largest, attention.octaves) : NaN;
    span.classList.toggle("unseen", isHidden);
    span.style.background = isColoured ? cssColour(t, dark) : "";
    span.style.color = isColoured ? inkOn(t, dark) : "";
    span.title = isHidden ? "hidden by a mask" : weights ? digitsOf(weight) : "";
  });
}

export function drawText(head) {
  if (built !== head.run) build(head.run);
  const chosen = state.direction === "to" ? state.query : state.key;
  const isTo = state.direction === "to";
  const weights = chosen < 0 ? null : isTo ? head.row(chosen) : head.column(chosen);
  const [painted, plain] = isTo ? [spans.keys, spans.queries] : [spans.queries, spans.keys];
  if (painted !== plain) paint(plain, null);
  // With nothing chosen: how much each token receives from all.
  if (chosen < 0) paint(painted, isTo ? head.received : null);
  else paint(painted, weights, (n) => (isTo ? head.at(chosen, n) : head.at(n, chosen)).hidden);
  for (const each of new Set([...spans.queries, ...spans.keys])) each.classList.remove("chosen");
  (isTo ? spans.queries : spans.keys)[chosen]?.classList.add("chosen");
}
