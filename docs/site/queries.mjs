// SPDX-License-Identifier: Apache-2.0
// What people ask, and the page that answers: node queries.mjs SITE asks the site's search, and names every question whose answer is
// neither first nor second, or whose best section of that page is another.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { runInThisContext } from "node:vm";

// question: page or page#section; of several, separated by spaces, each is an answer.
const expected = {
  "use in huggingface": "start.html#hugging-face models.html#hugging-face-transformers",
  "hugging face": "models.html#hugging-face-transformers start.html#hugging-face lessons/hugging-face.html",
  "how do i install": "building.html start.html",
  "install": "building.html start.html",
  "pip install": "start.html#python building.html#as-a-wheel",
  "train on a gpu": "training.html#on-a-gpu",
  "gpu training": "training.html#on-a-gpu",
  "sliding window": "spec.html#s10-window cache.html#windows",
  "license": "source/LICENSE.html index.html#licence",
  "licence": "source/LICENSE.html index.html#licence",
  "vllm": "models.html cache.html",
  "determinism": "bits.html",
  "is it deterministic": "bits.html",
  "reproducible results": "bits.html",
  "append": "cache.html reference/python.html#heed.KvCache.append lessons/decoding.html",
  "append to a kv cache": "cache.html reference/python.html#heed.KvCache.append",
  "kv cache": "cache.html",
  "paged attention": "cache.html#pages",
  "quantize the cache": "cache.html#int8",
  "int8 cache": "cache.html#int8 numerics.html#int8-caches",
  "how fast is it": "performance.html",
  "benchmarks": "performance.html",
  "compare with pytorch speed": "performance.html#against-others performance.html",
  "how much memory does it need": "performance.html#how-much-memory",
  "what is attention": "attention.html",
  "what is a causal mask": "spec.html#s9-causal attention.html",
  "causal ends or starts": "attention.html#causalstarts-and-causalends",
  "is_causal": "attention.html#causalstarts-and-causalends python.html#coming-from-pytorch-fscaled_dot_product_attention reference/python/torch.html#heed.torch.scaled_dot_product_attention start.html#pytorch",
  "scaled_dot_product_attention": "python.html#coming-from-pytorch-fscaled_dot_product_attention reference/python.html#heed.scaled_dot_product_attention reference/python/torch.html#heed.torch.scaled_dot_product_attention",
  "coming from flash attention": "python.html#coming-from-flashattention",
  "MultiheadAttention": "python.html#coming-from-torchnnmultiheadattention",
  "gqa": "cpp.html#multi-head-multi-query-and-grouped-query-are-a-number lessons/from-scratch.html#4-fewer-key-and-value-heads spec.html#s8-which-kv-head-a-query-head-reads",
  "grouped query attention": "cpp.html#multi-head-multi-query-and-grouped-query-are-a-number",
  "rope": "cache.html#rotary-embedding checkpoints.html#rotary-embedding spec.html#s15-rotary-embedding-srccpu-srcrotary",
  "alibi": "spec.html#s21-alibi",
  "softcap": "spec.html#s2-softcap",
  "dropout": "spec.html#s7-dropout",
  "log sum exp": "spec.html#s12-log-sum-exp",
  "padding mask": "lessons/from-scratch.html#2-masks reference/python.html#heed.padding_mask",
  "row that sees no key": "spec.html#s6-a-query-that-sees-no-key",
  "nan": "numerics.html#what-nan-and-infinity-cost",
  "how accurate is it": "performance.html#how-exact bounds.html",
  "error bound": "bounds.html",
  "use from rust": "c.html#from-another-language",
  "c api": "c.html reference/c.html",
  "heed_attention_backward": "reference/c.html#heed_attention_backward",
  "gradients in c": "c.html#gradients training.html",
  "jax": "start.html#jax python.html#jax",
  "mpi": "scale.html lessons/ranks.html",
  "multi gpu": "scale.html lessons/ranks.html",
  "number of threads": "environment.html#heed_num_threads cpp.html#threads",
  "environment variables": "environment.html",
  "visualize attention": "view.html lessons/seeing.html",
  "playground": "view.html#the-playground",
  "generate text token by token": "lessons/decoding.html#the-same-answer-token-by-token cpp.html#generating-one-token-after-another",
  "speculative decoding": "lessons/decoding.html#drafts-that-are-taken-back",
  "beam search": "lessons/decoding.html#several-continuations-of-one-prompt",
  "load safetensors": "checkpoints.html cpp.html#files",
  "windows msvc": "building.html#on-macos-and-windows",
  "build with cuda": "building.html",
  "find_package": "building.html#from-cmake start.html#c",
  "add a new mask": "add-mask.html",
  "port to a new cpu": "add-target.html",
  "contribute": "source/CONTRIBUTING.html",
  "release notes": "source/CHANGELOG.html",
  "command line": "commands.html",
  "fine tune a model": "lessons/hugging-face.html#train-it training.html lessons/training.html",
  "conan": "building.html#by-conan-vcpkg-or-conda",
};

const site = process.argv[2];
let received, answered;
globalThis.addEventListener = (_, listener) => (received = listener);
globalThis.postMessage = (message) => (answered = message);
runInThisContext(readFileSync(join(site, "site/search.js"), "utf8"));
received({ data: { type: 0, data: JSON.parse(readFileSync(join(site, "search/search_index.json"), "utf8")) } });

let wrong = 0;
for (const [question, answers] of Object.entries(expected)) {
  received({ data: { type: 2, data: question } });
  // The best of the page is what one sees first; a page whose title answers needs no section.
  const shown = answered.data.items.slice(0, 2).map((group) => group[0].location);
  const isAnswered = answers.split(" ").some((place) => shown.some((each) => each === place || (!place.includes("#") && each.split("#")[0] === place)));
  if (isAnswered) continue;
  wrong += 1;
  console.log(`search: "${question}" leads to ${shown.join(" and ") || "nothing"}, not to ${answers.replaceAll(" ", " or ")}`);
}
const count = Object.keys(expected).length;
console.log(`${count} questions, ${count - wrong} answered`);
process.exit(wrong ? 1 : 0);
