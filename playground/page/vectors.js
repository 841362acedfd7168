// SPDX-License-Identifier: Apache-2.0
// The vectors of every token: those of a model, or made up. What a head asks for then differs from head to head, so that their maps do; any number may be
// put in by hand. All have two decimals: the numbers shown are the numbers computed with.
import { model, vectorsOf } from "./model.js";
import { parsedEdit, state, words } from "./state.js";

const headKinds = ["the same word", "the word before", "the first word", "the word after"];
export const kindOf = (head) => (state.source < 0 ? headKinds[head % headKinds.length] : model.heads[head].asks);

const frequencies = [1.9, 1, 0.5, 0.2, 1.4, 0.75, 0.35, 0.1];
const rounded = (x) => Math.round(x * 100) / 100;
const unit = (vector) => {
  const length = Math.hypot(...vector);
  return vector.map((x) => x / length);
};

// Equal words have equal vectors; a different word has another direction.
function wordVector(word, dim) {
  let seed = 2166136261;
  for (const character of word.toLowerCase()) seed = Math.imul(seed ^ character.codePointAt(0), 16777619);
  return unit(
    Array.from({ length: dim }, () => {
      seed = Math.imul(seed ^ (seed >>> 15), 2246822519) + 0x9e3779b9;
      return ((seed >>> 8) & 0xffff) / 32768 - 1;
    }),
  );
}

const placeVector = (place, dim) =>
  unit(Array.from({ length: dim }, (_, d) => (d % 2 ? Math.sin : Math.cos)(frequencies[d >> 1] * place)));

const firstVector = (isFirst, dim) => Array.from({ length: dim }, (_, d) => (d === 0 && isFirst ? 1 : 0));

// A query and a key of one head; their product is largest for what the head asks for.
function queryAndKey(head, place, word, dim) {
  const gain = Math.sqrt([5, 9, 4, 9][head % 4] * Math.sqrt(dim));
  const [query, key] = [
    () => [wordVector(word, dim), wordVector(word, dim)],
    () => [placeVector(place - 1, dim), placeVector(place, dim)],
    () => [firstVector(true, dim), firstVector(place === 0, dim)],
    () => [placeVector(place + 1, dim), placeVector(place, dim)],
  ][head % 4]();
  return { query: query.map((x) => x * gain), key: key.map((x) => x * gain) };
}

const mean = (vectors) => vectors[0].map((_, d) => vectors.reduce((sum, vector) => sum + vector[d], 0) / vectors.length);

// Places in the arrays that heed reads: head by head, token by token.
export const placeOf = (head, token, d, count) => (head * count + token) * state.dim + d;

function withEdits(vectors, count) {
  for (const edit of state.edits.split(" ").filter(Boolean)) {
    const { kind, head, token, d, value } = parsedEdit(edit);
    vectors[kind][placeOf(head, token, d, count)] = value;
  }
  return vectors;
}

// Query heads that share a KV head have the mean of their keys there, as checkpoints are converted.
export function vectorsFor(kvHeads) {
  const { heads, dim } = state;
  if (state.source >= 0) {
    const real = vectorsOf(state.source, kvHeads);
    return kvHeads === state.kvHeads ? withEdits(real, words().length) : real;
  }
  const group = heads / kvHeads;
  const tokens = words();
  const all = tokens.map((word, place) => Array.from({ length: heads }, (_, head) => queryAndKey(head, place, word, dim)));
  const flat = (count, vector) =>
    Float32Array.from(Array.from({ length: count }, (_, head) => tokens.map((_, place) => vector(head, place))).flat(2), rounded);
  const vectors = {
    q: flat(heads, (head, place) => all[place][head].query),
    k: flat(kvHeads, (kv, place) => mean(all[place].slice(kv * group, (kv + 1) * group).map((each) => each.key))),
    v: flat(kvHeads, (_, place) => wordVector(tokens[place], dim)),
  };
  return kvHeads === state.kvHeads ? withEdits(vectors, tokens.length) : vectors;
}

export function editsWith(place, value) {
  return [...state.edits.split(" ").filter((edit) => edit && !edit.startsWith(`${place}:`)), `${place}:${value}`].join(" ");
}
