// SPDX-License-Identifier: Apache-2.0
// Everything by key, and a list of the keys after what the words mean.
import { maps, neighbour } from "./detail.js";
import { byId, element } from "./dom.js";
import { glossaryList } from "./glossary.js";
import { headAt } from "./head.js";
import { change, state } from "./state.js";

// To a neighbour in the order shown; the first head has none before it, nor the last one after it.
export function step(by) {
  const next = neighbour(headAt(state.run, state.layer, state.head), by);
  if (next) change({ run: next.run, layer: next.layer, head: next.index });
}

// In the text there is one token to move.
function moveInText(head, by) {
  const name = state.direction === "to" ? "query" : "key";
  const count = name === "query" ? head.queries : head.keys;
  const n = Math.min(count - 1, Math.max(0, state[name] < 0 ? 0 : state[name] + by));
  change(head.queries === head.keys ? { query: n, key: n } : { [name]: n });
}

function move(byQuery, byKey) {
  const head = headAt(state.run, state.layer, state.head);
  if (state.view === "text") return moveInText(head, byQuery + byKey);
  const within = (n, count) => Math.min(count - 1, Math.max(0, n));
  const query = within(state.query < 0 ? 0 : state.query + byQuery, head.queries);
  const key = within(state.key < 0 ? 0 : state.key + byKey, head.keys);
  change({ query, key });
  return maps[0]?.show(query, key);
}

const help = byId("help");

// Key, what it does, in words. In the overview only the last ones apply.
const keys = [
  { names: ["ArrowUp", "k"], shown: "↑ ↓", words: "the query before, or after", act: () => move(-1, 0) },
  { names: ["ArrowDown", "j"], act: () => move(1, 0) },
  { names: ["ArrowLeft", "h"], shown: "← →", words: "the key before, or after", act: () => move(0, -1) },
  { names: ["ArrowRight", "l"], act: () => move(0, 1) },
  { names: ["+", "="], shown: "+ −", words: "zoom in and out; 0 shows the whole", act: () => maps[0]?.zoomAt(1.6) },
  { names: ["-"], act: () => maps[0]?.zoomAt(1 / 1.6) },
  { names: ["0"], act: () => change({ x: 0, y: 0, zoom: 1 }) },
  { names: ["["], shown: "[ ]", words: "the head before, or after, in the order shown", act: () => step(-1) },
  { names: ["]"], act: () => step(1) },
  { names: ["m"], shown: "M T I B", words: "map, text, lines, table", act: () => change({ view: "map" }) },
  { names: ["t"], act: () => change({ view: "text" }) },
  { names: ["i"], act: () => change({ view: "lines" }) },
  { names: ["b"], act: () => change({ view: "table" }) },
  { names: ["Escape"], shown: "Esc", words: "back to all heads", act: () => change({ head: -1 }) },
  { names: ["s"], shown: "S", words: "linear or logarithmic scale", everywhere: true, act: () => change({ scale: state.scale === "log" ? "linear" : "log" }) },
  { names: ["d"], shown: "D", words: "light or dark", everywhere: true, act: () => change({ theme: state.theme === "dark" ? "light" : "dark" }) },
  { names: ["?"], shown: "?", words: "this list", everywhere: true, act: () => help.showModal() },
];

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT)$/.test(event.target.tagName) || help.open) return;
  const found = keys.find((key) => key.names.includes(event.key) && (key.everywhere || state.head >= 0));
  if (!found) return;
  event.preventDefault();
  found.act();
});

function keyList() {
  const list = element("dl");
  for (const { shown, words } of keys.filter((key) => key.shown)) {
    const term = element("dt");
    for (const name of shown.split(" ")) term.append(element("kbd", name), " ");
    list.append(term, element("dd", words));
  }
  return list;
}

export function buildHelp() {
  const close = element("button", "Close");
  close.type = "button";
  close.addEventListener("click", () => help.close());
  const top = element("div", "", "bar");
  top.append(element("h2", "Words"), close);
  const note = "The wheel or two fingers zoom, dragging moves, a click chooses a query and a key. The address holds the view: a copied link brings it back.";
  help.append(top, glossaryList(), element("h2", "Keyboard"), keyList(), element("p", note, "quiet"));
}
