// SPDX-License-Identifier: Apache-2.0
// The search of the site, in place of the theme's: it answers questions that are asked in words. It is a Worker of its own, or runs in
// a hidden frame where a page was opened from a disk, and speaks the theme's messages: the index comes, then queries, and each is
// answered by groups of sections, a group for a page, the best first.

const Message = { setup: 0, ready: 1, query: 2, result: 3 };

// Words that decide nothing, in questions as on pages.
const STOP = new Set(
  ("a about all am an and any are as at be been but by can could did do does every for from get give had has have how i if in into is it " +
    "its just let like make many me much my need not of on one or other our out over should show so some somebody tell than that the " +
    "their them then there these they this those to too up us use used uses using want was way we were what when where which who why " +
    "will with without work works would you your").split(" "),
);

// What people call things, and the words that the pages have for it. A phrase of several words is written with spaces.
const MEANINGS = {
  huggingface: "hugging face transformers", hf: "hugging face transformers", transformers: "hugging face", llama: "hugging face model",
  qwen: "hugging face model", vllm: "hugging face serve pages",
  install: "installing building start", setup: "start building", "get started": "start here", "getting started": "start here",
  quickstart: "start here quick", tutorial: "lesson start", example: "lesson", hello: "start", compile: "building", link: "linking building",
  pip: "wheel python", apt: "debian package", cmake: "find_package building", docker: "debian package", windows: "macos", mac: "macos", msvc: "macos building",
  license: "licence", copyright: "licence",
  determinism: "bits agree same", deterministic: "bits agree same", reproducible: "bits agree", reproducibility: "bits agree",
  bitwise: "bits agree", identical: "same bits agree", nondeterministic: "bits promised",
  "sliding window": "window", swa: "window", "local attention": "window", "flash attention": "flashattention",
  "train on a gpu": "training gpu", "gpu training": "training gpu", backprop: "gradients training", backward: "gradients", backpropagation: "gradients training",
  finetune: "train training", "fine tune": "train training", autograd: "gradients", gpu: "nvidia cuda", cuda: "nvidia gpu", nvidia: "cuda gpu",
  kv: "cache", kvcache: "caches", "kv cache": "caches", append: "caches tokens", "paged attention": "caches pages", pagedattention: "caches pages",
  quantize: "int8", quantization: "int8", quantized: "int8", "8 bit": "int8", memory: "bytes", fast: "speed performance", faster: "speed performance",
  slow: "speed performance", "compare with": "against others performance", benchmark: "performance bench against", benchmarks: "performance bench against", latency: "performance", throughput: "performance",
  gqa: "grouped query", mqa: "multi query grouped", mha: "multi head grouped query", "multi query": "grouped", rope: "rotary embedding", positional: "rotary",
  yarn: "rotary", lse: "log sum exp", logsumexp: "log sum exp", "attention sink": "softmax sink", accurate: "exact error bound", accuracy: "exact error bound", precision: "arithmetic error bound",
  precise: "error bound", error: "refused mistakes", exception: "error refused mistakes", float16: "f16", half: "f16 bf16", bfloat16: "bf16", fp16: "f16", nan: "infinity",
  inf: "infinity", visualize: "seeing view", visualization: "seeing view", plot: "picture seeing", heatmap: "seeing view", picture: "pictures seeing",
  playground: "playground", interactive: "playground", sdpa: "scaled_dot_product_attention", mpi: "ranks groups", distributed: "ranks", "multi gpu": "ranks lesson",
  "ring attention": "ranks stream", ctypes: "c language", rust: "another language c", julia: "another language c", ffi: "another language c",
  serve: "decode cache pages generating", serving: "decode cache pages", inference: "decode cache generating", generate: "generating decode",
  generation: "generating decode", streaming: "stream keys", varlen: "packed sequences", padding: "key lengths padded", padded: "padding key lengths",
  ragged: "packed sequences", "mixed precision": "bf16", threads: "heed_num_threads", cores: "threads", environment: "variables", env: "environment variables",
  cli: "commands", "command line": "commands", contribute: "contributing rules", bug: "contributing", changes: "changelog", "release notes": "changelog",
  upgrade: "versions", version: "versions changes", mask: "masks", pytorch: "torch", torch: "pytorch", tensorflow: "array python", numpy: "python arrays",
  "beam search": "continuations prompt", "port": "instruction set", "new cpu": "add instruction set", speculative: "drafts", rollback: "drafts truncate", safetensors: "files weights checkpoints", checkpoint: "weights checkpoints",
  weights: "weights", glossary: "words", terminology: "words", architecture: "map source", design: "map source path call", avx: "instruction set", simd: "instruction set",
  kernel: "kernels", explain: "explain", "causal mask": "causal s9",
};

const PHRASES = Object.keys(MEANINGS).filter((words) => words.includes(" "));

// How much a page's kind counts: guides before rules, both before listings. By how its address begins.
const KINDS = [["start", 1.25], ["index", 0.75], ["source/CONTRIBUTING", 0.8], ["source/CHANGELOG", 0.45], ["source/LICENSE", 1], ["source/", 0.2], ["reference/c.", 0.8],
  ["reference/cpp/", 0.4], ["reference/", 0.7], ["conformance", 0.5], ["architecture", 0.65], ["add-", 0.7], ["spec", 0.85], ["numerics", 0.8], ["testing", 0.7]];

const plain = (html) => html.replace(/<[^>]*>/g, " ").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&quot;/g, '"').replace(/&amp;/g, "&").replace(/\s+/g, " ").trim();
const escaped = (text) => text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);

// "installing", "installed", "installs" and "install" are one word.
const stems = new Map();
const stem = (word) => stems.get(word) ?? stems.set(word, stemmed(word)).get(word);
function stemmed(word) {
  if (word.length < 5 || /[_\d]/.test(word)) return word.replace(/([^s])s$/, "$1");
  return word.replace(/(?:ies)$/, "y").replace(/([^s])s$/, "$1").replace(/(?:ations?|ing|ed)$/, "").replace(/([^aeiouls])\1$/, "$1").replace(/e$/, "");
}

// The words of a text in their order; a name is found whole (is_causal, KvCache) and by its parts.
function wordsOf(text) {
  const found = [];
  for (const name of text.replace(/c\+\+/gi, "cpp").match(/[\p{L}\p{N}_]+/gu) ?? []) {
    found.push(name.toLowerCase());
    const parts = name.split(/_+|(?<=[a-z])(?=[A-Z])/).filter(Boolean);
    if (parts.length > 1) found.push(...parts.map((part) => part.toLowerCase()));
  }
  return found;
}

function countsOf(text) {
  const counts = new Map();
  for (const word of wordsOf(text)) counts.set(stem(word), (counts.get(stem(word)) ?? 0) + 1);
  return counts;
}

// Of a heading: 1 for a word of its own, less for a part of a name.
function headingOf(title) {
  const whole = new Set((title.toLowerCase().replace(/c\+\+/g, "cpp").match(/[\p{L}\p{N}_]+/gu) ?? []).map(stem));
  return new Map([...countsOf(title).keys()].map((word) => [word, whole.has(word) ? 1 : 0.6]));
}

// ---- the index ----

let sections = []; // { location, title, text, words: counts, heading: stem -> weight, around: counts of its page's title, length, kind }
let spread = new Map(); // stem -> in how many sections it is
let mean = 1;

function setUp({ docs }) {
  const titles = new Map(docs.filter((doc) => !doc.location.includes("#")).map((doc) => [doc.location, doc.title]));
  sections = docs.map((doc) => {
    const [page] = doc.location.split("#");
    const address = page.replace(/\.html$/, "");
    return {
      location: doc.location,
      page,
      title: plain(doc.title),
      text: plain(doc.text),
      words: countsOf(plain(doc.text)),
      heading: headingOf(plain(doc.title)),
      around: countsOf(`${plain(titles.get(page) ?? "")} ${address.replace(/\W/g, " ")}`),
      kind: KINDS.find(([begin]) => page.startsWith(begin))?.[1] ?? 1,
    };
  });
  spread = new Map();
  for (const section of sections) {
    section.length = [...section.words.values()].reduce((sum, count) => sum + count, 0);
    for (const word of new Set([...section.words.keys(), ...section.heading.keys(), ...section.around.keys()])) spread.set(word, (spread.get(word) ?? 0) + 1);
  }
  mean = sections.reduce((sum, section) => sum + section.length, 0) / Math.max(1, sections.length);
}

const rarity = (word) => Math.log(1 + sections.length / (1 + (spread.get(word) ?? 0)));

// ---- a query ----

// What is asked: a list of { said, any }: the word as it was typed, and the stems that answer it, each with how well it does.
function asked(query, isTyping) {
  const said = wordsOf(query);
  const deciding = said.filter((word) => !STOP.has(word));
  const terms = new Map();
  const put = (key, word, weight) => {
    const any = terms.get(key) ?? terms.set(key, new Map()).get(key);
    any.set(stem(word), Math.max(weight, any.get(stem(word)) ?? 0));
  };
  // A phrase says what its words do not: it stands for them.
  let phrase = ` ${said.join(" ")} `;
  for (const words of PHRASES) {
    if (!phrase.includes(` ${words} `)) continue;
    phrase = phrase.replace(` ${words} `, " ");
    for (const other of MEANINGS[words].split(" ")) put(`${words}: ${other}`, other, 1);
  }
  const rest = phrase.trim().split(" ");
  const known = deciding.filter((word) => rest.includes(word) && (word.length > 1 || spread.has(word)));
  for (const [n, word] of (known.length || terms.size ? known : said).entries()) {
    put(word, word, 1);
    for (const other of MEANINGS[word]?.split(" ") ?? []) put(word, other, 0.6);
    // The word being typed is not whole yet; three letters begin to mean something.
    if (isTyping && n === known.length - 1 && word.length > 2) {
      for (const other of spread.keys()) if (other.startsWith(word) && other !== word) put(word, other, spread.has(stem(word)) ? 0.3 : 0.8);
    }
  }
  return [...terms].map(([key, any]) => ({ said: key, any, weight: Math.max(...[...any].map(([word, weight]) => weight * rarity(word))) }));
}

// How well a section answers: its heading counts most, then its page's title, then its text, where a word that comes again counts less
// and less. What is not answered at all makes the rest count less.
function scoreOf(section, terms) {
  const dampen = (count, scale) => (count * 2.2) / (count + 1.2 * scale);
  const scale = 0.25 + 0.75 * (section.length / mean);
  const headed = 1 / (1 + 0.25 * Math.max(0, section.heading.size - 2));
  let [sum, answered, possible] = [0, 0, 0];
  for (const { any, weight } of terms) {
    let best = 0;
    for (const [word, strength] of any) {
      const rare = strength * rarity(word);
      const found = 5 * headed * (section.heading.get(word) ?? 0) + 2.5 * Math.min(1, section.around.get(word) ?? 0) + dampen(section.words.get(word) ?? 0, scale);
      best += rare * found * (best > 0 ? 0.4 : 1);
    }
    sum += best;
    possible += weight;
    if (best > 0) answered += weight;
  }
  if (!sum) return 0;
  return sum * (answered / possible) ** 2 * section.kind * (section.location.includes("#") ? 1 : 1.15);
}

// ---- what is shown ----

function marked(text, terms) {
  return text.replace(/[\p{L}\p{N}_]+/gu, (word) => {
    const isAsked = terms.some(({ any }) => wordsOf(word).some((part) => (any.get(stem(part)) ?? 0) >= 0.6));
    return isAsked ? `\0${word}\x01` : word;
  });
}
const withMarks = (text) => escaped(text).replaceAll("\0", "<mark data-md-highlight>").replaceAll("\x01", "</mark>");

// The stretch of a text where most of the words are.
function excerpt(text, terms) {
  const all = marked(text, terms);
  let [best, most] = [0, -1];
  for (let at = all.indexOf("\0"); at >= 0; at = all.indexOf("\0", at + 1)) {
    const count = all.slice(at, at + 200).split("\0").length;
    if (count > most) [best, most] = [at, count];
  }
  const from = best < 60 ? 0 : all.indexOf(" ", best - 50) + 1;
  const cut = all.slice(from, from + 240);
  const whole = from + 240 >= all.length ? cut : cut.slice(0, cut.lastIndexOf(" "));
  return `<p>${from ? "… " : ""}${withMarks(whole)}${whole.length < all.length - from ? " …" : ""}</p>`;
}

function answer(query) {
  const isTyping = !/\s$/.test(query);
  const terms = asked(query, isTyping);
  if (!terms.length) return { items: [] };
  const pages = new Map();
  for (const section of sections) {
    const score = scoreOf(section, terms);
    if (score > 0) (pages.get(section.page) ?? pages.set(section.page, []).get(section.page)).push({ section, score });
  }
  const groups = [...pages.values()];
  for (const group of groups) group.sort((a, b) => b.score - a.score);
  groups.sort((a, b) => b[0].score - a[0].score);
  const shown = ({ section, score }) => ({
    location: section.location,
    title: withMarks(marked(section.title, terms)),
    text: section.text ? excerpt(section.text, terms) : "",
    score,
    terms: Object.fromEntries(terms.map(({ said, any }) => [said, [...any.keys()].some((word) => [section.words, section.heading, section.around].some((counts) => counts.has(word)))])),
  });
  const items = groups.slice(0, 30).map((group) => {
    const best = group.filter(({ score }, n) => n < 6 && score > 0.35 * group[0].score);
    // A page is part of its group, wherever the words are.
    if (best.every(({ section }) => section.location !== section.page)) {
      const page = sections.find((section) => section.location === group[0].section.page);
      if (page) best.push({ section: page, score: 0 });
    }
    return best.map(shown);
  });
  return { items, suggest: isTyping ? suggested(query) : [] };
}

// The commonest word that goes on as the last one begins.
function suggested(query) {
  const last = wordsOf(query).at(-1) ?? "";
  if (last.length < 3) return [];
  const whole = new Map();
  for (const { heading, title } of sections) if (heading) for (const word of wordsOf(title)) if (word.startsWith(last)) whole.set(word, (whole.get(word) ?? 0) + 1);
  const [best] = [...whole].sort((a, b) => b[1] - a[1] || a[0].length - b[0].length);
  return best ? [best[0]] : [];
}

addEventListener("message", ({ data: message }) => {
  if (message.type === Message.setup) {
    setUp(message.data);
    postMessage({ type: Message.ready });
  } else if (message.type === Message.query) {
    postMessage({ type: Message.result, data: answer(message.data) });
  }
});
