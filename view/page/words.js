// SPDX-License-Identifier: Apache-2.0
// Weights in sentences: who looks how much at whom.
import { attention } from "./blobs.js";
import { digitsOf } from "./digits.js";
import { tokensOf } from "./tokens.js";
import { areWords, asProse, goesOn, shortened, visible } from "./visible.js";

export const percent = (mass) => {
  if (mass === 0) return "0 %";
  if (!(mass > 0 && mass < Infinity)) return String(mass); // no share of anything
  if (mass < 0.0001) return "under 0.01 %";
  return `${(100 * mass).toFixed(mass < 0.01 ? 2 : 1)} %`;
};

// In a sentence the mark of a space in front says nothing.
const quoted = (token) => `“${shortened(visible(token).replace(/^·(?=.)/, ""), 40)}”`;

export const runName = (run) => attention.runs[run].name || `run ${run}`;

// A token in a sentence: the word, or its place where no words are known.
export const queryName = (run, n) => (tokensOf[run].isNamed ? quoted(tokensOf[run].queries[n]) : `query ${n}`);
export const keyName = (run, n) => (tokensOf[run].isNamed ? quoted(tokensOf[run].keys[n]) : `key ${n}`);

// What is known of a weight: a sentence, the number itself, and what there is to add to it.
export function said(head, query, key, other = null) {
  const [from, to] = [queryName(head.run, query), keyName(head.run, key)];
  const known = head.at(query, key);
  const theirs = other?.at(query, key);
  if (known.hidden && (!theirs || theirs.hidden)) return { sentence: `${from} does not see ${to}`, value: "hidden", more: "by a mask" };
  if (theirs) {
    const a = known.hidden ? 0 : known.weight;
    const b = theirs.hidden ? 0 : theirs.weight;
    const about = known.exact && theirs.exact ? "" : ", about";
    return {
      sentence: `${from} looks at ${to}: ${percent(a)} in ${runName(head.run)}, ${percent(b)} in ${runName(other.run)}`,
      value: `${a - b > 0 ? "+" : ""}${(a - b).toPrecision(6)}`,
      more: `${digitsOf(a)} − ${digitsOf(b)}${about}`,
    };
  }
  if (known.exact) return { sentence: `${from} looks at ${to}: ${percent(known.weight)}`, value: digitsOf(known.weight), more: "" };
  const most = known.max.toPrecision(2);
  if (known.pool === 1) return { sentence: `${from} looks at ${to}: about ${percent(known.max)}`, value: `≈ ${most}`, more: "to within 3 %" };
  return {
    sentence: `${from} looks at ${to}: at most ${percent(known.max)}`,
    value: `≤ ${most}`,
    more: `its ${known.pool} × ${known.pool} weights: largest ${most}, mean ${known.mean.toPrecision(2)}, to within 3 %`,
  };
}

// The text of a run's tokens, or as much of it as is read at a glance.
export function proseOf(tokens, longest) {
  const some = tokens.slice(0, longest);
  const isSpaced = areWords(tokens); // but there is no space before the end of a sentence or within a word
  const pieces = some.map((token, n) => (isSpaced && n > 0 && !goesOn(token) && !/^[.,;:!?…)’”]$/.test(token) ? " " : "") + asProse(token));
  const text = pieces.join("").trim();
  const short = shortened(text.replace(/\s+/g, " "), longest);
  return tokens.length > some.length && !short.endsWith("…") ? `${short} …` : short;
}
