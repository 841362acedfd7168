// SPDX-License-Identifier: Apache-2.0
// Caches that fill token by token: the same text under MHA, GQA and MQA, with the bytes that heed counts.
import { append, attend, makeCaches, sizeOf } from "./heed.js";
import { cacheTypes, change, kvChoices, maskName, state, words } from "./state.js";
import { vectorsFor } from "./vectors.js";

const bytes = (count) => `${count.toLocaleString("en")} bytes`;

// As many KV heads as query heads, the number chosen or about the square root, and one.
function kinds() {
  const between = kvChoices(state.heads).filter((kv) => kv > 1 && kv < state.heads);
  const grouped = between.includes(state.kvHeads) ? state.kvHeads : between[between.length >> 1];
  return [["MHA", state.heads], ...(grouped ? [["GQA", grouped]] : []), ...(state.heads > 1 ? [["MQA", 1]] : [])];
}

// How far the result of the last token is from attention over all tokens at once, under a causal mask.
function distance(problem, vectors, kvHeads, cached) {
  const { tokens, heads, dim } = problem;
  const later = Uint8Array.from({ length: tokens * tokens }, (_, i) => (i % tokens > Math.floor(i / tokens) ? 1 : 0));
  const whole = attend({ ...problem, kvHeads }, vectors, later).out;
  const last = state.cached - 1;
  let largest = 0;
  for (let head = 0; head < heads; ++head) {
    for (let d = 0; d < dim; ++d) {
      const [mine, theirs] = [cached[head * dim + d], whole[(head * tokens + last) * dim + d]];
      if (!Object.is(mine, theirs)) largest = Math.max(largest, Math.abs(theirs - mine)); // both may be infinite, or NaN
    }
  }
  return largest;
}

// How much of MHA's bytes that is.
const share = (part, whole) => (part === whole ? "" : `: 1/${whole / part} of MHA`);

const fullNames = { MHA: "Multi-head attention", GQA: "Grouped-query attention", MQA: "Multi-query attention" };

function row(name, kvHeads, count, size, most) {
  const line = document.createElement("div");
  line.className = "cache";
  line.dataset.kind = name;
  const title = document.createElement("b");
  title.textContent = name;
  const about = document.createElement("span");
  about.className = "quiet";
  about.textContent = `${fullNames[name]}: ${kvHeads} KV head${kvHeads === 1 ? "" : "s"}, ${bytes(size.tokenBytes)} a token${share(size.tokenBytes, most)}`;
  const used = document.createElement("output");
  used.textContent = bytes(size.tokenBytes * state.cached);
  used.title = `${bytes(size.bytes)} with the pages of 16 tokens that they lie in`;
  const cells = document.createElement("div");
  cells.className = "cells";
  for (let token = 0; token < count; ++token) {
    const cell = document.createElement("i");
    cell.classList.toggle("kept", token < state.cached);
    cell.style.height = `${Math.max(3, (34 * size.tokenBytes) / most)}px`;
    cells.append(cell);
  }
  line.append(title, about, used, cells);
  return line;
}

// Whoever writes sees no later word, whatever the mask of the map.
const underCausal = () => `under a causal mask${maskName() === "causal" ? "" : ", which is not the one chosen here"}`;

export function drawCaches(problem) {
  const count = problem.tokens;
  const shown = kinds();
  makeCaches(shown.map(([, kvHeads]) => kvHeads), problem.dim, count, cacheTypes.indexOf(state.cacheType));
  let furthest = 0;
  shown.forEach(([, kvHeads], cache) => {
    const vectors = vectorsFor(kvHeads);
    let last;
    for (let token = 0; token < state.cached; ++token) last = append(cache, { ...problem, kvHeads }, vectors, token);
    if (last) furthest = Math.max(furthest, distance(problem, vectors, kvHeads, last));
  });
  const sizes = shown.map((_, cache) => sizeOf(cache));
  const most = Math.max(...sizes.map((size) => size.tokenBytes));
  document.getElementById("caches").replaceChildren(...shown.map(([name, kvHeads], cache) => row(name, kvHeads, count, sizes[cache], most)));
  document.getElementById("cache-check").textContent =
    state.cached === 0
      ? "Empty."
      : furthest === 0
        ? `“${words()[state.cached - 1]}” looks at the keys in the cache. Its result is exactly that of attention over all words at once ${underCausal()}.`
        : `“${words()[state.cached - 1]}” looks at the keys in the cache, which are rounded to ${state.cacheType}: its result is up to ${furthest.toPrecision(2)} off.`;
}

document.getElementById("cache-next").addEventListener("click", () => change({ cached: state.cached + 1 }));
document.getElementById("cache-all").addEventListener("click", () => change({ cached: words().length }));
document.getElementById("cache-empty").addEventListener("click", () => change({ cached: 0 }));
