// SPDX-License-Identifier: Apache-2.0
// What the words of both pages mean.
import { element } from "./dom.js";

const meanings = [
  ["token", "a word or a part of one; counted from 0, as layers and heads are"],
  ["·word", "the dot stands for a space: this token begins a word"],
  ["query", "the token that looks, and its numbers that say what it looks for; a row of the map"],
  ["key", "a token that is looked at, and its numbers that say what it is found by; a column of the map"],
  ["weight", "how much a query looks at a key, from 0 to 1; the weights of a row sum to one"],
  ["softmax", "makes weights of the scores of a row: e to the power of each, divided by the sum of all; no weight is below 0, and they sum to one"],
  ["value", "the numbers that a token holds ready; the result of a query is the sum of all values, each times its weight"],
  ["head", "one set of weights; a layer has several, each looking for something else"],
  ["KV head", "one set of keys and values; query heads may share it, and the fewer KV heads a layer has, the smaller its KV cache"],
  ["MHA, GQA, MQA", "multi-head attention: every head has keys and values of its own; grouped-query attention: some heads share them; multi-query attention: all do"],
  ["KV cache", "the keys and values of all tokens so far, kept while a model writes"],
  ["mask", "hides keys from queries: a causal one hides what comes later"],
  ["scale", "what the product of query and key is multiplied by, 1/√length unless you say otherwise; a larger one makes weights more uneven"],
  ["softcap", "a bound on scores: s becomes softcap × tanh(s / softcap), so no score lies beyond it"],
  ["first token", "heads that find nothing to look at rest there: every query sees it, also under a causal mask"],
  ["[CLS], [SEP]", "marks that some models put at the beginning of a text and after each part of it; heads that find nothing often look there"],
  ["entropy", "how far a query spreads: 0 bits is one key, n bits as much as 2ⁿ equal ones"],
];

export function glossaryList() {
  const list = element("dl", "", "glossary");
  for (const [term, says] of meanings) list.append(element("dt", term), element("dd", says));
  return list;
}
