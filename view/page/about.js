// SPDX-License-Identifier: Apache-2.0
// What a newcomer needs above all heads: the text, how a picture is read, and on the first visit what to do.
import { attention } from "./blobs.js";
import { byId, element } from "./dom.js";
import { tokensOf } from "./tokens.js";
import { proseOf } from "./words.js";

const longestText = 280; // characters; its beginning tells which text it is

// The text once, however many runs have it; two where queries and keys are two sequences.
function texts() {
  const found = new Set();
  attention.runs.forEach((run, r) => {
    if (!tokensOf[r].isNamed) return;
    for (const tokens of new Set([tokensOf[r].queries, tokensOf[r].keys])) found.add(proseOf(tokens, longestText));
  });
  return [...found].slice(0, 3);
}

function reading() {
  const made = element("p", "Every picture is one head. ", "reading");
  made.append(element("b", "Rows are queries"), ", the tokens that look; ", element("b", "columns are keys"), ", the tokens they look at. ", element("b", "Choose a head"), " to see it large.");
  return made;
}

// A page may be kept from remembering; then it says this at every visit.
const memory = "heed-view-hint";
function wasSeen() {
  try {
    return localStorage.getItem(memory) === "seen";
  } catch {
    return false;
  }
}
function remember() {
  try {
    localStorage.setItem(memory, "seen");
  } catch {
    // It is said again.
  }
}

function hint() {
  const made = element("div", "", "hint");
  const list = element("ul", "");
  for (const words of [
    "A row says how much one token looks at every other: its weights, which sum to one.",
    "A strong diagonal: tokens look at themselves. Just below it: at the token before. A strong first column: at the first token.",
    "Layers, heads, tokens: counted from 0.",
  ])
    list.append(element("li", words));
  const close = element("button", "Got it");
  close.type = "button";
  close.addEventListener("click", () => {
    remember();
    made.remove();
  });
  made.append(list, close);
  return made;
}

export function buildAbout() {
  const quotes = texts().map((text) => element("blockquote", text));
  for (const quote of quotes) quote.dir = "auto";
  byId("about").replaceChildren(...quotes, reading(), ...(wasSeen() ? [] : [hint()]));
}
