// SPDX-License-Identifier: Apache-2.0
// The tour: what it says, what the page shows meanwhile, what is pointed at, and on a narrow screen the
// columns and the keys that it is about.
import { digitsFor } from "./masks.js";

export const sentence = "The cat that chased the mouse saw the cat";
const causal = digitsFor("causal", sentence.split(" ").length);

export const lessons = [
  {
    title: "What does “it” mean?",
    words: "Guess first: which word does “it” stand for here? Then look along the row of “it”: the strongest cell is what this head of a real model, all-MiniLM-L6-v2, looks at. Nobody told it; it was learnt. The next steps show how, with vectors short enough to read.",
    shows: { source: 0 },
    marks: "#map .followed, #map .chosen",
  },
  {
    title: "A query",
    words: "Attention lets every word gather something from the others. The last “cat” is followed here. Its query is a row of numbers: what this word asks for. They are made up, and you can change them.",
    shows: { head: 0, query: 8, key: 1 },
    marks: "#steps .asking",
  },
  {
    title: "Keys and scores",
    words: "Every word also has a key: what it offers to be found by. Multiply query and key number by number, add it all up, and scale: that is the score. The higher, the better the key answers the query. Here both “cat” answer best: they are the same word, so they have the same key.",
    shows: { head: 0, query: 8, key: 1 },
    marks: "#steps .k, #steps .score:not(.masked)",
    columns: ["key", "score"],
    keys: [1, 8],
  },
  {
    title: "Softmax",
    words: "Scores become shares of one: take e to the power of each score (less the largest, so that nothing overflows), and divide by the sum of all. Larger scores win by far, and no share is below 0.",
    shows: { head: 0, query: 8, key: 1 },
    marks: "#steps .share, #steps .weight",
    columns: ["score", "power", "weight"],
  },
  {
    title: "Weights",
    words: "These shares are the weights. The map has those of all words at once: a row for every query, a column for every key. Each row sums to one. The marked row is the one that is followed; click another.",
    shows: { head: 0, query: 8, key: 1 },
    marks: "#map .followed, #map .chosen",
  },
  {
    title: "Values",
    words: "What a word holds ready is its value, again a row of numbers. The result is the sum of all values, each times its weight: mostly the values of both “cat”, a little of the others.",
    shows: { head: 0, query: 8, key: 1 },
    marks: "#steps .v, #result",
    columns: ["weight", "value"],
    keys: [1, 8],
  },
  {
    title: "Heads",
    words: "One set of queries and keys finds one kind of thing. So there are several, called heads and counted from 0. Head 0 asks for the same word; this one, head 1, asks for the word before. Choose the others.",
    shows: { head: 1, query: 8, key: 7 },
    marks: "#strip button",
  },
  {
    title: "Masks",
    words: "From here on the second “the” is followed, as it has words before and after it. A model that writes may not look at words that come later. A causal mask hides them: their scores are −∞, so their weights are zero. Choose another mask, or draw one.",
    shows: { head: 1, query: 4, key: 3, hidden: causal },
    marks: "#map .unseen, #mask",
  },
  {
    title: "Shared keys: GQA and MQA",
    words: "Heads can share keys and values. Here four query heads read two KV heads: grouped-query attention, GQA. One for all is multi-query attention, MQA; one for each is multi-head attention, MHA. Heads that share keys can find fewer different things: compare the maps.",
    shows: { head: 1, query: 4, key: 3, hidden: causal, kvHeads: 2 },
    marks: "#strip .sharing, #kvHeads",
  },
  {
    title: "The KV cache",
    words: "Writing word by word, a model keeps the keys and values of all words before: the KV cache. That is what sharing saves: with four query heads, MQA keeps a quarter of MHA’s bytes, and GQA with two KV heads half. Press Next token.",
    shows: { head: 1, query: 4, key: 3, hidden: causal, kvHeads: 2, cached: 5 },
    marks: ".cache output",
  },
];
