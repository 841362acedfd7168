// SPDX-License-Identifier: Apache-2.0
// The tokens of every run.
import { attention } from "./blobs.js";

function tokensAt(place, count) {
  return place === null ? Array.from({ length: count }, (_, i) => String(i)) : attention.tokens[place];
}

// The tokens of a run's queries and keys.
export const tokensOf = attention.runs.map((run) => ({
  queries: tokensAt(run.query_tokens, run.queries),
  isNamed: run.query_tokens !== null,
  keys: tokensAt(run.key_tokens ?? (run.keys === run.queries ? run.query_tokens : null), run.keys),
}));
