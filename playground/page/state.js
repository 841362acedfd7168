// SPDX-License-Identifier: Apache-2.0
// What is played with. All of it is in the page's address, so that a link brings it back.
import { lessons, sentence } from "./lessons.js";
import { asDigits, digitsFor, masks } from "./masks.js";
import { model, shownOf } from "./model.js";

export const limits = { tokens: 24, heads: [1, 2, 4, 6, 8], dims: [2, 4, 8, 16], tokenLength: 32 };
export const cacheTypes = ["f32", "f16", "bf16", "int8"]; // as heed numbers them

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = () => (prefersDark.matches ? "dark" : "light");

const defaults = {
  source: -1, // a sentence of the model; none: words of one's own, with vectors that are made up
  tokens: sentence,
  heads: 4,
  kvHeads: 4,
  dim: 8,
  scale: "", // heed's own, 1/√dim
  softcap: "", // none
  hidden: "", // a digit for four pairs of query and key; none is hidden where it is empty
  mask: "", // the rule that was chosen for it; none where it was drawn
  edits: "", // numbers put in by hand: "q.0.3.1:0.5 v.1.2.0:-2" are head, token, place and value
  head: 0,
  query: 4,
  key: 0,
  tool: "follow", // or draw
  cacheType: "f32",
  cached: 0, // tokens in the caches
  alone: 0, // 1: the map by itself, inside another page
  tour: 0, // the step of the tour, counted from one; 0: none
  theme: systemTheme(),
};

export const state = { ...defaults };

// A step of the tour begins with its own numbers.
function baseOf(tour, source) {
  const shows = lessons[tour - 1]?.shows;
  return { ...defaults, ...shownOf(shows ? shows.source : source), ...shows };
}
const listeners = [];
let scheduled = false;

export function onChange(listener) {
  listeners.push(listener);
}

// What is left out, in sentences: they stand there until the next change.
let notes = [];
function tell(sentence) {
  notes = [sentence];
  renderSoon();
}

export const isFloat = (x) => Number.isFinite(Math.fround(x));
export const refuseNumber = (text) => tell(`${text || "This"} is no number of f32, whose largest is 3.4028235e38: it stays as it was.`);

let split = { tokens: null };
function splitWords() {
  if (split.tokens === state.tokens) return split;
  const all = state.tokens.split(/\s+/).filter(Boolean);
  const used = all.slice(0, limits.tokens).map((word) => Array.from(word).slice(0, limits.tokenLength).join(""));
  split = { tokens: state.tokens, used, notes: [] };
  if (all.length > used.length) split.notes.push(`Only the first ${limits.tokens} of ${all.length} words are used.`);
  if (used.some((word, n) => word !== all[n])) split.notes.push(`Words are cut after ${limits.tokenLength} characters.`);
  return split;
}

export const words = () => splitWords().used;
export const notices = () => [...splitWords().notes, ...notes].join(" ");

export const kvChoices = (heads) => Array.from({ length: heads }, (_, i) => i + 1).filter((kv) => heads % kv === 0);

// A byte for every query and key, 1 where the key is hidden.
export function hiddenPairs(count) {
  const pairs = new Uint8Array(count * count);
  return state.hidden === "" ? pairs : pairs.map((_, i) => (parseInt(state.hidden[i >> 2], 16) >> (i & 3)) & 1);
}

// A number as its input writes it; what is none is left out.
const asNumber = (text) => (text.trim() && isFloat(Number(text)) ? String(Number(text)) : "");

// The rule by which keys are hidden, or "drawn".
function ruleOf(count) {
  if (state.mask && state.mask !== "drawn") return state.mask;
  const digits = asDigits(hiddenPairs(count));
  return Object.keys(masks).find((name) => masks[name][1] && digitsFor(name, count) === digits) ?? "drawn";
}
export const maskName = () => state.mask || ruleOf(words().length);

// A rule holds for any number of words, a drawn mask for as many as it was drawn for.
function keepMask(rule, count) {
  if (count === words().length) return;
  if (rule === "drawn") notes.push(`The mask drawn by hand is gone: it was one for ${count} words.`);
  Object.assign(state, rule === "drawn" ? { mask: "", hidden: "" } : { mask: rule === "none" ? state.mask : rule, hidden: digitsFor(rule, words().length) });
}

// "q.0.3.1:0.5" -> its parts; nothing where that is no number of a vector there is.
export function parsedEdit(edit) {
  const [, kind, ...numbers] = /^([qkv])\.(\d+)\.(\d+)\.(\d+):(-?[\d.e+-]+)$/.exec(edit) ?? [];
  const [head, token, d, value] = numbers.map(Number);
  const isThere = kind && head < (kind === "q" ? state.heads : state.kvHeads) && token < words().length && d < state.dim;
  return isThere && isFloat(value) ? { kind, head, token, d, value } : null;
}

// Of the numbers that an address has for a place the last one counts.
function keepEdits() {
  const said = state.edits.split(" ").filter(Boolean);
  const kept = said.filter(parsedEdit);
  state.edits = Array.from(new Map(kept.map((edit) => edit.split(":"))), (pair) => pair.join(":")).join(" ");
  if (kept.length < said.length) notes.push(`Left out of this link: ${said.length - kept.length} of ${said.length} numbers, which no vector here can have.`);
}

// Whatever was said, what follows from it fits.
function settle() {
  const count = words().length;
  const real = shownOf(state.source);
  if (real.tokens !== state.tokens) Object.assign(state, { source: -1 }, state.source < 0 ? {} : { heads: defaults.heads, kvHeads: defaults.heads, dim: defaults.dim });
  else Object.assign(state, { heads: real.heads, dim: real.dim });
  if (!limits.heads.includes(state.heads)) state.heads = defaults.heads;
  if (!limits.dims.includes(state.dim) && state.source < 0) state.dim = defaults.dim;
  if (!kvChoices(state.heads).includes(state.kvHeads)) state.kvHeads = state.heads;
  if (!cacheTypes.includes(state.cacheType)) state.cacheType = defaults.cacheType;
  if (!/^[0-9a-f]*$/.test(state.hidden) || state.hidden.length !== Math.ceil((count * count) / 4)) state.hidden = "";
  const isRule = Boolean(masks[state.mask]?.[1]) && digitsFor(state.mask, count) === state.hidden;
  if (state.mask !== "drawn" && !isRule) state.mask = "";
  for (const name of ["scale", "softcap"]) state[name] = asNumber(state[name]);
  if (!lessons[state.tour - 1]) state.tour = 0;
  if (state.alone !== 1) state.alone = 0;
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
    const base = baseOf(state.tour, state.source);
    const changed = Object.entries(state).filter(([name, value]) => name === "tour" ? value > 0 : name === "source" ? value >= 0 : value !== base[name]);
    try {
      history.replaceState(null, "", `#${new URLSearchParams(changed)}`);
    } catch {
      // A page inside another page may have no address of its own.
    }
  }, 120);
}

// What edits and cached tokens are of must stay as it is for them to mean anything.
const outdates = { tokens: ["edits", "cached"], dim: ["edits", "cached"], heads: ["edits", "cached"], kvHeads: ["edits", "cached"] };

export function change(changes) {
  const [count, rule] = [words().length, ruleOf(words().length)];
  const stale = Object.keys(changes).flatMap((name) => outdates[name] ?? []);
  notes = stale.includes("edits") && state.edits && changes.edits === undefined ? ["The numbers put in by hand are gone: they were those of other vectors."] : [];
  Object.assign(state, Object.fromEntries(stale.map((name) => [name, defaults[name]])), changes);
  if (changes.tokens !== undefined && changes.hidden === undefined) keepMask(rule, count);
  settle();
  writeAddress();
  renderSoon();
}

// A sentence of the model, or one's own words again.
export const chooseSource = (source) => change(model.sentences[source] ? { ...shownOf(source), hidden: "", mask: "" } : { ...defaults, theme: state.theme });

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
  Object.assign(state, baseOf(Number(said.get("tour")), Number(said.get("source") ?? -1)));
  for (const [name, value] of said) {
    if (Object.hasOwn(defaults, name)) state[name] = typeof defaults[name] === "number" ? Number(value) : value;
  }
  notes = [];
  settle();
  keepEdits();
  if (said.get("hidden") && !state.hidden) notes.push(`Left out of this link: a mask that is not one for ${words().length} words.`);
  renderSoon();
}
addEventListener("hashchange", readAddress);

// The page follows the system from light to dark and back, unless it was told otherwise.
prefersDark.addEventListener("change", () => {
  const isFollowing = state.theme === defaults.theme;
  defaults.theme = systemTheme();
  change(isFollowing ? { theme: defaults.theme } : {});
});
