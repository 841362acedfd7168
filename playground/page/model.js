// SPDX-License-Identifier: Apache-2.0
// Heads of a real model: their queries, keys and values for a few sentences, as playground/heads.py took them.
import { unpack } from "../../view/page/unpack.js";

export let model = { heads: [], sentences: [] };

export async function readModel() {
  model = JSON.parse(new TextDecoder().decode(await unpack("model-heads")));
}

// What the page shows of a sentence at first: the pronoun, and the noun that it means.
export function shownOf(source) {
  const sentence = model.sentences[source];
  if (!sentence) return {};
  const heads = model.heads.length;
  return { source, tokens: sentence.tokens.join(" "), heads, kvHeads: heads, dim: sentence.dim, head: 0, query: sentence.query, key: sentence.key };
}

// Head by head and token by token; heads that share keys and values have the mean of theirs.
export function vectorsOf(source, kvHeads) {
  const { q, k, v, tokens, dim } = model.sentences[source];
  const [size, group] = [tokens.length * dim, model.heads.length / kvHeads];
  const shared = (all) =>
    Float32Array.from({ length: kvHeads * size }, (_, at) => {
      const [kv, place] = [Math.floor(at / size), at % size];
      let sum = 0;
      for (let n = 0; n < group; ++n) sum += all[(kv * group + n) * size + place];
      return Math.round(sum / group) / 100;
    });
  return { q: Float32Array.from(q, (x) => x / 100), k: shared(k), v: shared(v) };
}
