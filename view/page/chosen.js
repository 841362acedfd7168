// SPDX-License-Identifier: Apache-2.0
// The chosen token: what it looks at, or who looks at it; and the chosen weight, here and in all heads.
import { digitsOf } from "./digits.js";
import { byId, element, refill } from "./dom.js";
import { allHeads, nameOf } from "./head.js";
import { change, state } from "./state.js";
import { tokensOf } from "./tokens.js";
import { visible } from "./visible.js";
import { keyName, queryName, said } from "./words.js";

const chosenPanel = byId("chosen");
const few = 8; // lines of a list
const longestList = 400;

function pressable(name, act) {
  const made = element("button");
  made.type = "button";
  made.dataset.name = name;
  made.addEventListener("click", act);
  return made;
}

// A line of a list: a name, a bar and the number, all of it one button.
function weightLine({ name, note, weight, id, isCurrent, act }) {
  const button = pressable(id, act);
  button.className = "plain";
  if (isCurrent) button.setAttribute("aria-current", "true");
  const title = element("span", "", "token");
  title.append(element("bdi", name), element("small", note));
  const track = element("span", "", "track");
  const bar = element("i");
  bar.style.width = `${Math.min(100, 100 * weight)}%`;
  track.append(bar);
  button.append(title, track, element("span", digitsOf(weight), "digits"));
  const item = element("li");
  item.append(button);
  return item;
}

// The weights of the chosen query, or those for the chosen key, largest first, and what a line of them chooses.
function weightsOf(head) {
  const { queries, keys } = tokensOf[head.run];
  const { query, key } = state;
  if (state.direction === "to" || key < 0) {
    const found = head.largestOf(query, longestList).map(([n, weight]) => ({ token: keys[n], n, weight }));
    return { found, title: [`Query ${query} `, element("b", visible(queries[query])), " looks at"], others: "keys", chosen: key, choice: (n) => ({ key: n }) };
  }
  const column = Array.from(head.column(key), (weight, n) => ({ token: queries[n], n, weight }));
  const found = column.filter(({ weight }) => weight > 0).sort((a, b) => b.weight - a.weight).slice(0, longestList);
  return { found, title: [`Key ${key} `, element("b", visible(keys[key])), " is looked at by"], others: "queries", chosen: query, choice: (n) => ({ query: n }) };
}

function chooseFromList(choice) {
  change(choice);
  seekChosen();
}

function listed(head) {
  const { found, title, others, chosen, choice } = weightsOf(head);
  const heading = element("h2");
  heading.append(...title);
  const list = element("ol");
  const shown = state.list === "all" ? found : found.slice(0, few);
  list.append(...shown.map(({ token, n, weight }) => weightLine({ name: visible(token), note: String(n), weight, id: `token ${n}`, isCurrent: n === chosen, act: () => chooseFromList(choice(n)) })));
  if (found.length <= few) return [heading, list];
  const more = pressable("list", () => change({ list: state.list === "all" ? "few" : "all" }));
  more.textContent = state.list === "all" ? `The ${few} largest` : `All ${found.length} ${others}`;
  return [heading, list, more];
}

// The heads of all layers and runs in which the chosen query looks most at the chosen key.
async function ranked(head, query, key) {
  const heads = allHeads.filter((each) => each.isExact && each.queries === head.queries && each.keys === head.keys);
  await Promise.all(heads.map((each) => each.ready()));
  const weights = heads.map((each) => ({ each, ...each.at(query, key) })).filter(({ hidden, weight }) => !hidden && weight > 0);
  weights.sort((a, b) => b.weight - a.weight);
  const list = element("ol", "", "ranking");
  list.append(
    ...weights.slice(0, few).map(({ each, weight }) => weightLine({
      name: nameOf(each), note: "", weight, id: nameOf(each), isCurrent: each === head, act: () => change({ run: each.run, layer: each.layer, head: each.index }),
    })),
  );
  return [element("h2", `Heads in which ${queryName(head.run, query)} looks most at ${keyName(head.run, key)}`), list];
}

async function pair(head) {
  const { query, key } = state;
  const isToken = state.view === "text" && query === key; // it stands for both
  if (query < 0 || key < 0 || isToken) return [];
  const { sentence, value, more } = said(head, query, key);
  const cell = element("div", "", "cell");
  if (state.view !== "map") cell.append(element("p", `${sentence}.`, "sentence")); // it stands above the map
  cell.append(element("p", `Query ${query} to key ${key}: ${value}${more ? ` (${more})` : ""}`, "quiet"));
  if (!head.isExact || allHeads.length === 1) return [cell];
  const rank = pressable("rank", () => change({ rank: state.rank === "on" ? "off" : "on" }));
  rank.textContent = "Which heads do this most?";
  rank.setAttribute("aria-expanded", String(state.rank === "on"));
  return [cell, rank, ...(state.rank === "on" ? await ranked(head, query, key) : [])];
}

const wanted = (head) => JSON.stringify([head.run, head.layer, head.index, state.query, state.key, state.direction, state.list, state.rank, state.view]);
let shownChosen = "";

export async function showChosen(head) {
  const as = wanted(head);
  if (as === shownChosen) return bringUp();
  await head.ready();
  const isAny = state.query >= 0 || (state.direction === "from" && state.key >= 0);
  const parts = isAny ? [...(await pair(head)), ...listed(head)] : [element("h2", "Choose a token: in the map, the text, the lines or the table.")];
  if (as !== wanted(head)) return undefined; // something else was chosen meanwhile
  shownChosen = as;
  refill(chosenPanel, parts);
  return bringUp();
}

// Where the page scrolls as a whole, this may stand far from what was pressed.
let isSought = false;
export function seekChosen() {
  isSought = true;
}
function bringUp() {
  if (!isSought) return;
  isSought = false;
  const { top } = chosenPanel.getBoundingClientRect();
  if (top < 0 || top > 0.8 * innerHeight) chosenPanel.scrollIntoView({ block: "start" });
}
