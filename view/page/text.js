// SPDX-License-Identifier: Apache-2.0
// The text itself, coloured by what the chosen token looks at, or by who looks at it.
import { attention } from "./blobs.js";
import { cssColour, inkOn, strength } from "./colour.js";
import { digitsOf } from "./digits.js";
import { change, state } from "./state.js";
import { tokensOf } from "./tokens.js";
import { areWords, asProse, goesOn, visible } from "./visible.js";
import { keyName, queryName } from "./words.js";

const panel = document.getElementById("text");
const meaning = document.createElement("p");
meaning.className = "meaning";
let seen = null; // the token that was chosen when it was last drawn
let built = null; // the run whose tokens stand there
let spans = { queries: [], keys: [] };

function passage(tokens, onChoose) {
  const paragraph = document.createElement("div");
  const isWords = areWords(tokens);
  paragraph.className = isWords ? "passage words" : "passage";
  const made = tokens.map((token, n) => {
    const span = document.createElement("span");
    span.textContent = isWords && !goesOn(token) ? visible(token) : asProse(token);
    if (isWords && goesOn(tokens[n + 1] ?? "")) span.className = "unfinished";
    span.dir = "auto";
    span.addEventListener("click", () => onChoose(n));
    paragraph.append(span);
    return span;
  });
  return { paragraph, made };
}

function heading(text) {
  const made = document.createElement("h3");
  made.textContent = text;
  return made;
}

// One passage where queries and keys are the same tokens, two where they are not.
function build(run) {
  const { queries, keys } = tokensOf[run];
  const isOne = queries.length === keys.length && queries.every((token, n) => token === keys[n]);
  if (isOne) {
    const { paragraph, made } = passage(keys, (n) => change({ query: n, key: n }));
    panel.replaceChildren(meaning, paragraph);
    spans = { queries: made, keys: made };
  } else {
    const asking = passage(queries, (n) => change({ query: n, direction: "to" }));
    const asked = passage(keys, (n) => change({ key: n, direction: "from" }));
    panel.replaceChildren(meaning, heading("Queries"), asking.paragraph, heading("Keys"), asked.paragraph);
    spans = { queries: asking.made, keys: asked.made };
  }
  built = run;
}

// What is coloured now: weights by token, who is chosen, and in words. With nothing chosen it is how much
// each token is looked at by all. The line above the text says it; the legend above stays as high as it is.
function coloured(head) {
  const isTo = state.direction === "to";
  const chosen = isTo ? state.query : state.key;
  if (chosen < 0) return { isTo: true, chosen, weights: head.received, kind: "Mean weight", caption: "how much each token is looked at, on average by those that see it" };
  const caption = isTo ? `how much ${queryName(head.run, chosen)} looks at each token` : `how much each token looks at ${keyName(head.run, chosen)}`;
  return { isTo, chosen, weights: isTo ? head.row(chosen) : head.column(chosen), kind: "Weight", caption };
}

const largestIn = (weights) => weights.reduce((most, weight) => (weight > most && weight < Infinity ? weight : most), 0);
const endOf = (weights) => (state.span === "one" ? 1 : Math.min(1, largestIn(weights)) || 1);

// What the legend says of it.
export function textMeaning(head) {
  if (!head.received) return { caption: "Weight" };
  const { weights, kind } = coloured(head);
  return { caption: kind, largest: endOf(weights) };
}

// `isHiddenAt` tells what a mask hides from what is not a number.
function paint(made, weights, isHiddenAt) {
  const dark = state.theme === "dark";
  const largest = endOf(weights);
  made.forEach((span, n) => {
    const weight = weights[n];
    const isHidden = isHiddenAt(n);
    const t = Number.isFinite(weight) ? strength(weight, state.scale, largest, attention.octaves) : NaN;
    span.classList.toggle("unseen", isHidden);
    span.style.background = isHidden ? "" : cssColour(t, dark);
    span.style.color = isHidden ? "" : inkOn(t, dark);
    span.title = isHidden ? "hidden by a mask" : digitsOf(weight);
  });
}

function unpaint(made) {
  for (const span of made) {
    span.classList.remove("unseen");
    span.style.background = span.style.color = span.title = "";
  }
}

export function drawText(head) {
  if (built !== head.run) build(head.run);
  const { isTo, chosen, weights, caption } = coloured(head);
  const [painted, plain] = isTo ? [spans.keys, spans.queries] : [spans.queries, spans.keys];
  if (painted !== plain) unpaint(plain);
  paint(painted, weights, (n) => chosen >= 0 && (isTo ? head.at(chosen, n) : head.at(n, chosen)).hidden);
  for (const each of new Set([...spans.queries, ...spans.keys])) each.classList.remove("chosen");
  const span = (isTo ? spans.queries : spans.keys)[chosen];
  span?.classList.add("chosen");
  if (span && span !== seen) span.scrollIntoView({ block: "nearest" });
  seen = span;
  meaning.textContent = `Coloured: ${caption}.${chosen < 0 ? " Choose a token to see what it looks at." : ""}`;
}
