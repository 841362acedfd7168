// SPDX-License-Identifier: Apache-2.0
// What is being looked at. All of it is in the page's address, so that a link brings it back.
import { attention } from "./blobs.js";

const longest = Math.max(...attention.runs.map((run) => Math.max(run.queries, run.keys)));

export const mostLines = 16;

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = () => (prefersDark.matches ? "dark" : "light");

const defaults = {
  run: 0,
  layer: 0,
  head: -1, // none: all heads
  view: "map", // or text, lines, table
  scale: longest > 256 ? "log" : "linear",
  span: "own", // colours end at the largest weight of what is shown; or "one"
  kind: "max", // or mean: what a pooled cell shows
  theme: systemTheme(),
  compare: -1, // another run
  query: -1, // the chosen token
  key: -1,
  direction: "to", // or from: what the chosen token looks at, or who looks at it
  most: 3, // lines of a token
  heads: "one", // or all: whose lines
  off: "", // heads of the layer whose lines are switched off, by number
  list: "few", // or all: how many weights of the chosen token are listed
  rank: "off", // or on: in which heads the chosen weight is largest
  size: 0, // of the pictures of all heads; 0 fits the screen
  sort: "place",
  filter: "",
  from: "",
  to: "",
  x: 0, // the map's upper left corner in weights, and how much larger than the whole it is
  y: 0,
  zoom: 1,
};

export const state = { ...defaults };
const listeners = [];
let scheduled = false;

export function onChange(listener) {
  listeners.push(listener);
}

function render() {
  scheduled = false;
  for (const listener of listeners) listener();
}

export function renderSoon() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(render);
}

// Between all heads and one the browser goes back; other steps are too many for that.
let writing;
let isStep = false;
function writeAddress() {
  clearTimeout(writing);
  writing = setTimeout(() => {
    const changed = Object.entries(state).filter(([name, value]) => value !== defaults[name]);
    const rounded = changed.map(([name, value]) => [name, typeof value === "number" ? String(Math.round(value * 1000) / 1000) : value]);
    try {
      history[isStep ? "pushState" : "replaceState"](null, "", `#${new URLSearchParams(rounded)}`);
    } catch {
      // A page inside another page may have no address of its own.
    }
    isStep = false;
  }, 120);
}

// A token that the run has not is not chosen: another run may be shorter.
function settle() {
  const { queries, keys } = attention.runs[state.run];
  if (!(state.query >= 0 && state.query < queries)) state.query = -1;
  if (!(state.key >= 0 && state.key < keys)) state.key = -1;
}

export function change(changes) {
  if (changes.head !== undefined && changes.head < 0 !== state.head < 0) isStep = true;
  Object.assign(state, changes);
  settle();
  writeAddress();
  renderSoon();
}

const fractions = ["x", "y", "zoom"]; // all other numbers are places in lists

const allowed = {
  view: ["map", "text", "lines", "table"],
  scale: ["linear", "log"],
  span: ["own", "one"],
  heads: ["one", "all"],
  kind: ["max", "mean"],
  theme: ["light", "dark"],
  direction: ["to", "from"],
  list: ["few", "all"],
  rank: ["off", "on"],
};

// An address comes from outside: what it may not say is left at its default, and light or dark at what it is.
export function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, defaults, { theme: state.theme });
  for (const [name, value] of said) {
    if (!Object.hasOwn(defaults, name)) continue;
    if (typeof defaults[name] === "number") {
      const number = Number(value);
      if (fractions.includes(name) ? Number.isFinite(number) : Number.isInteger(number)) state[name] = number;
    } else if (!allowed[name] || allowed[name].includes(value)) {
      state[name] = value;
    }
  }
  const run = attention.runs[state.run];
  if (!run?.layers[state.layer]) Object.assign(state, { run: 0, layer: 0, head: -1 });
  if (!attention.runs[state.run].layers[state.layer]?.heads[state.head]) state.head = -1;
  settle();
  if (!attention.runs[state.compare]) state.compare = -1;
  state.zoom = Math.max(1, state.zoom);
  state.most = Math.min(mostLines, Math.max(1, state.most));
  renderSoon();
}
addEventListener("hashchange", readAddress);

// Printed, the page is light.
let themeOnScreen;
function renderIn(theme) {
  state.theme = theme;
  render();
}
addEventListener("beforeprint", () => {
  themeOnScreen = state.theme;
  renderIn("light");
});
addEventListener("afterprint", () => renderIn(themeOnScreen));

// The page follows the system from light to dark and back, unless it was told otherwise.
prefersDark.addEventListener("change", () => {
  const isFollowing = state.theme === defaults.theme;
  defaults.theme = systemTheme();
  change(isFollowing ? { theme: defaults.theme } : {});
});
