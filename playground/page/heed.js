// SPDX-License-Identifier: Apache-2.0
// heed itself: the WebAssembly module inside this page, and what it computes.
import { unpack } from "../../view/page/unpack.js";

const names = ["queries", "keys", "values", "results", "weights", "raw", "softcapped", "masked", "cached"]; // as module.cpp has them
let heed;

const memory = () => new DataView(heed.memory.buffer);

// The module may ask its system for things a page has not: an environment, a clock, files. It gets an empty environment, and for
// the rest the number that says "no such function".
function systemFor(module) {
  const system = {};
  for (const { module: from, name } of WebAssembly.Module.imports(module)) (system[from] ??= {})[name] = () => 52;
  system.wasi_snapshot_preview1 = {
    ...system.wasi_snapshot_preview1,
    environ_get: () => 0,
    environ_sizes_get: (count, size) => {
      memory().setUint32(count, 0, true);
      memory().setUint32(size, 0, true);
      return 0;
    },
  };
  return system;
}

function text(address) {
  const from = new Uint8Array(heed.memory.buffer, address);
  return new TextDecoder().decode(from.slice(0, from.indexOf(0)));
}

export async function startHeed() {
  const module = await WebAssembly.compile(await unpack("heed"));
  heed = (await WebAssembly.instantiate(module, systemFor(module))).exports;
  heed._initialize?.();
  return { version: text(heed.play_version()), target: text(heed.play_kernel()).split(".").pop() };
}

function write(name, floats) {
  const address = heed.play_array(names.indexOf(name), floats.length);
  new Float32Array(heed.memory.buffer, address, floats.length).set(floats);
}

function read(name, length) {
  return new Float32Array(heed.memory.buffer, heed.play_array(names.indexOf(name), -1), length).slice();
}

// Throws what heed refuses, in heed's words.
function done(refused) {
  if (refused) throw new Error(text(heed.play_sentence()));
}

function writeVectors({ q, k, v }) {
  write("queries", q);
  write("keys", k);
  write("values", v);
}

// problem: tokens, heads, kvHeads, dim, scale and softcap (NaN: heed's own, none); hidden: a byte for every query and key.
export function attend(problem, vectors, hidden) {
  const { tokens, heads, kvHeads, dim, scale, softcap } = problem;
  writeVectors(vectors);
  const address = heed.play_hidden(tokens * tokens);
  new Uint8Array(heed.memory.buffer, address, tokens * tokens).set(hidden);
  done(heed.play_attend(tokens, heads, kvHeads, dim, scale, softcap));
  const squares = heads * tokens * tokens;
  return {
    out: read("results", heads * tokens * dim),
    weights: read("weights", squares),
    raw: read("raw", squares),
    softcapped: read("softcapped", squares),
    masked: read("masked", squares),
  };
}

// Empty caches of so many KV heads each.
export function makeCaches(kvHeads, dim, capacity, type) {
  heed.play_forget_caches();
  for (const each of kvHeads) done(heed.play_add_cache(each, dim, capacity, type));
}

// Appends one token's keys and values to a cache, and attends to it with its query.
export function append(cache, problem, vectors, token) {
  writeVectors(vectors);
  done(heed.play_append(cache, problem.tokens, problem.heads, token, problem.scale, problem.softcap));
  return read("cached", problem.heads * problem.dim);
}

export function sizeOf(cache) {
  return { bytes: heed.play_cache_bytes(cache), tokenBytes: heed.play_token_bytes(cache) };
}
