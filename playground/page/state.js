// SPDX-License-Identifier: Apache-2.0
// What is played with. All of it is in the page's address, so that a link brings it back.
import { lessons, sentence } from "./lessons.js";

export const limits = { tokens: 24, heads: [1, 2, 4, 6, 8], dims: [2, 4, 8, 16], tokenLength: 32 };
export const cacheTypes = ["f32", "f16", "bf16", "int8"]; // as heed numbers them

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = () => (prefersDark.matches ? "dark" : "light");

const defaults = {
  tokens: sentence,
  heads: 4,
  kvHeads: 4,
  dim: 8,
  scale: "", // heed's own, 1/√dim
  softcap: "", // none
  hidden: "", // a digit for four pairs of query and key; none is hidden where it is empty
  edits: "", // numbers put in by hand: "q.0.3.1:0.5 v.1.2.0:-2" are head, token, place and value
  head: 0,
  query: 4,
  key: 0,
  tool: "follow", // or draw
  cacheType: "f32",
  cached: 0, // tokens in the caches
  tour: 0, // the step of the tour, counted from one; 0: none
  theme: systemTheme(),
};

export const state = { ...defaults };

// A step of the tour begins with its own numbers.
const baseOf = (tour) => ({ ...defaults, ...lessons[tour - 1]?.shows });
const listeners = [];
let scheduled = false;

export function onChange(listener) {
  listeners.push(listener);
}

export const words = () => state.tokens.trim().split(/\s+/).filter(Boolean).slice(0, limits.tokens).map((word) => word.slice(0, limits.tokenLength));

export const kvChoices = (heads) => Array.from({ length: heads }, (_, i) => i + 1).filter((kv) => heads % kv === 0);

// A byte for every query and key, 1 where the key is hidden.
export function hiddenPairs(count) {
  const pairs = new Uint8Array(count * count);
  if (state.hidden.length !== Math.ceil(pairs.length / 4)) return pairs;
  return pairs.map((_, i) => (parseInt(state.hidden[i >> 2], 16) >> (i & 3)) & 1);
}

// A number as its input writes it; what is none is left out.
const asNumber = (text) => (text.trim() && Number.isFinite(Number(text)) ? String(Number(text)) : "");

// Whatever was said, what follows from it fits.
function settle() {
  const count = words().length;
  if (!limits.heads.includes(state.heads)) state.heads = defaults.heads;
  if (!limits.dims.includes(state.dim)) state.dim = defaults.dim;
  if (!kvChoices(state.heads).includes(state.kvHeads)) state.kvHeads = state.heads;
  if (!cacheTypes.includes(state.cacheType)) state.cacheType = defaults.cacheType;
  if (!/^[0-9a-f]*$/.test(state.hidden)) state.hidden = "";
  for (const name of ["scale", "softcap"]) state[name] = asNumber(state[name]);
  if (!lessons[state.tour - 1]) state.tour = 0;
  if (state.tool !== "draw") state.tool = "follow";
  if (state.theme !== "dark") state.theme = "light";
  const place = (at, end) => (Number.isInteger(at) ? Math.max(0, Math.min(at, end - 1)) : 0);
  state.head = place(state.head, state.heads);
  state.query = place(state.query, count);
  state.key = place(state.key, count);
  state.cached = place(state.cached, count + 1);
}

function render() {
  scheduled = false;
  for (const listener of listeners) listener();
}

function renderSoon() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(render);
}

let writing;
function writeAddress() {
  clearTimeout(writing);
  writing = setTimeout(() => {
    const base = baseOf(state.tour);
    const changed = Object.entries(state).filter(([name, value]) => name === "tour" ? value > 0 : value !== base[name]);
    try {
      history.replaceState(null, "", `#${new URLSearchParams(changed)}`);
    } catch {
      // A page inside another page may have no address of its own.
    }
  }, 120);
}

// What a mask, edits and cached tokens are of must stay as it is for them to mean anything.
const outdates = { tokens: ["hidden", "edits", "cached"], dim: ["edits", "cached"], heads: ["edits", "cached"], kvHeads: ["edits", "cached"] };

export function change(changes) {
  const stale = Object.keys(changes).flatMap((name) => outdates[name] ?? []);
  Object.assign(state, Object.fromEntries(stale.map((name) => [name, defaults[name]])), changes);
  settle();
  writeAddress();
  renderSoon();
}

export const startOver = () => change({ ...defaults, theme: state.theme });

// Goes to a step of the tour; 0 leaves it and brings back what was there before it. A link into the tour has nothing before it.
let before = null;
export function goOnTour(tour) {
  if (tour > 0 && state.tour === 0) before = { ...state };
  change(tour > 0 ? { ...baseOf(tour), tour, theme: state.theme } : { ...before, tour: 0, theme: state.theme });
  if (tour === 0) before = null;
}

// An address comes from outside: what it may not say is left at its default.
export function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, baseOf(Number(said.get("tour"))));
  for (const [name, value] of said) {
    if (Object.hasOwn(defaults, name)) state[name] = typeof defaults[name] === "number" ? Number(value) : value.slice(0, 4000);
  }
  settle();
  renderSoon();
}
addEventListener("hashchange", readAddress);

// The page follows the system from light to dark and back, unless it was told otherwise.
prefersDark.addEventListener("change", () => {
  const isFollowing = state.theme === defaults.theme;
  defaults.theme = systemTheme();
  change(isFollowing ? { theme: defaults.theme } : {});
});
