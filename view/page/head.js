// SPDX-License-Identifier: Apache-2.0
// One head: its levels, its exact weights as far as the page has them, and what is known of any single weight.
import { attention, bytesOf, wordsOf } from "./blobs.js";
import { codes, weightOf } from "./colour.js";
import { state } from "./state.js";

const hiddenBits = 0xffffffff; // in place of a weight that a mask hides
const noKey = 0xffffffff;

function codeOf(weight) {
  if (!Number.isFinite(weight)) return codes.notFinite;
  if (weight <= 0) return codes.zero;
  const steps = codes.one - codes.least;
  const step = Math.round(((Math.log2(weight) + attention.octaves) * steps) / attention.octaves);
  return codes.least + Math.min(steps, Math.max(0, step));
}

// The upper half of a float's bits says its code to within one step.
let codeOfUpperBits = null; // made when the first weights are coded
function makeCodes() {
  const bits = new Uint32Array(1);
  const weight = new Float32Array(bits.buffer);
  return Uint8Array.from({ length: 65536 }, (_, upper) => {
    bits[0] = ((upper << 16) | (upper === 0 ? 0 : 0x8000)) >>> 0;
    return codeOf(weight[0]);
  });
}

function codesOfWeights(bits) {
  codeOfUpperBits ??= makeCodes();
  const found = new Uint8Array(bits.length);
  for (let i = 0; i < bits.length; ++i) {
    found[i] = bits[i] === hiddenBits ? codes.hidden : bits[i] === 0 ? codes.zero : codeOfUpperBits[bits[i] >>> 16];
  }
  return found;
}

class Head {
  constructor(run, layer, index) {
    Object.assign(this, { run, layer, index });
    this.facts = attention.runs[run].layers[layer].heads[index];
    this.queries = attention.runs[run].queries;
    this.keys = attention.runs[run].keys;
    this.levels = this.facts.levels.map((level) => ({ ...level })).sort((a, b) => a.pool - b.pool);
    if (this.facts.exact !== null) this.levels.unshift({ pool: 1, rows: this.queries, columns: this.keys, exact: true });
    this.finest = this.levels[0];
    this.isExact = this.facts.exact !== null;
  }

  // The finest level whose cells are not smaller than `cells` weights wide, or the coarsest.
  levelFor(cells) {
    return this.levels.find((level) => level.pool >= cells) ?? this.levels[this.levels.length - 1];
  }

  // Codes of a level, `kind` being "max" or "mean".
  async codes(level, kind) {
    if (level.exact) return (await this.weights()).codes;
    return bytesOf(level[kind]);
  }

  // All weights: their bits, values and codes. Only where the page has them.
  weights() {
    this.unpacking ??= wordsOf(this.facts.exact).then((bits) => ({ bits, values: new Float32Array(bits.buffer), codes: codesOfWeights(bits) }));
    return this.unpacking;
  }

  // Unpacks what at(), row(), column() and largestOf() read.
  ready() {
    this.readying ??= this.unpackAll();
    return this.readying;
  }

  async unpackAll() {
    this.received = new Float32Array((await wordsOf(this.facts.received)).buffer);
    await this.readyLargest();
    if (!this.isExact) {
      this.max = await bytesOf(this.finest.max);
      this.mean = await bytesOf(this.finest.mean);
    }
    return this;
  }

  // Unpacks what largestOf() reads.
  readyLargest() {
    this.readyingLargest ??= this.unpackLargest();
    return this.readyingLargest;
  }

  async unpackLargest() {
    if (this.isExact) {
      this.all = await this.weights();
    } else {
      // At once: the map draws them as soon as there are keys.
      const [keys, weights] = await Promise.all([wordsOf(this.facts.top.keys), wordsOf(this.facts.top.weights)]);
      Object.assign(this, { topKeys: keys, topWeights: new Float32Array(weights.buffer) });
    }
  }

  // What is known of the weight of query i for key j: exact, or what its pooled cell says. After ready().
  at(i, j) {
    if (this.isExact) {
      const place = i * this.keys + j;
      return { hidden: this.all.bits[place] === hiddenBits, exact: true, weight: this.all.values[place] };
    }
    const { pool, columns } = this.finest;
    const cell = Math.floor(i / pool) * columns + Math.floor(j / pool);
    const known = { hidden: this.max[cell] === codes.hidden, pool, max: weightOf(this.max[cell], attention.octaves), mean: weightOf(this.mean[cell], attention.octaves) };
    const { count } = this.facts.top;
    for (let n = i * count; n < (i + 1) * count; ++n) {
      if (this.topKeys[n] === j) return { ...known, exact: true, weight: this.topWeights[n] };
    }
    return { ...known, exact: pool === 1 && known.max === 0, weight: known.mean };
  }

  // The weights of query i over all keys; NaN where hidden. Pooled cells give their mean.
  row(i) {
    const weights = new Float32Array(this.keys);
    for (let j = 0; j < this.keys; ++j) weights[j] = this.pooledAt(i, j);
    if (!this.isExact) this.eachTop(i, (key, weight) => { weights[key] = weight; });
    return weights;
  }

  // The weights of all queries for key j.
  column(j) {
    const weights = new Float32Array(this.queries);
    for (let i = 0; i < this.queries; ++i) {
      weights[i] = this.pooledAt(i, j);
      if (!this.isExact) this.eachTop(i, (key, weight) => { if (key === j) weights[i] = weight; });
    }
    return weights;
  }

  // The largest difference from another head in sight of both: of single weights if the page has them, else of pooled ones.
  largestDifference(other) {
    const key = `${other.run} ${other.layer} ${other.index}`;
    this.differences ??= new Map();
    if (!this.differences.has(key) && this.received && other.received) {
      let largest = 0;
      const values = (head, n) => (head.isExact ? (head.all.bits[n] === hiddenBits ? 0 : head.all.values[n]) : weightOf(head.max[n], attention.octaves) || 0);
      const count = Math.min(this.finest.rows * this.finest.columns, other.finest.rows * other.finest.columns);
      for (let n = 0; n < count; ++n) {
        const difference = Math.abs(values(this, n) - values(other, n));
        if (difference > largest && difference < Infinity) largest = difference;
      }
      this.differences.set(key, largest);
    }
    return this.differences.get(key) ?? 1;
  }

  pooledAt(i, j) {
    if (this.isExact) {
      const place = i * this.keys + j;
      return this.all.bits[place] === hiddenBits ? NaN : this.all.values[place];
    }
    const { pool, columns } = this.finest;
    return weightOf(this.mean[Math.floor(i / pool) * columns + Math.floor(j / pool)], attention.octaves);
  }

  eachTop(i, use) {
    const { count } = this.facts.top;
    for (let n = i * count; n < (i + 1) * count && this.topKeys[n] !== noKey; ++n) use(this.topKeys[n], this.topWeights[n]);
  }

  // [key, weight] of the largest weights of query i, exact, the largest first.
  largestOf(i, most) {
    const found = [];
    if (this.isExact) {
      const row = this.row(i);
      for (let j = 0; j < row.length; ++j) if (row[j] > 0) found.push([j, row[j]]);
      found.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    } else {
      this.eachTop(i, (key, weight) => found.push([key, weight]));
    }
    return found.slice(0, most);
  }
}

const heads = attention.runs.map((run, r) => run.layers.map((layer, l) => layer.heads.map((_, h) => new Head(r, l, h))));
export const allHeads = heads.flat(2);
export function headAt(run, layer, head) {
  return heads[run]?.[layer]?.[head];
}

// Which KV head a query head reads, and which query heads read it as well.
export function groupOf(head) {
  const layer = attention.runs[head.run].layers[head.layer];
  const kvHeadOf = (h) => (layer.tiled ? h % layer.kv_heads : Math.floor(h / (layer.heads.length / layer.kv_heads)));
  const kvHead = kvHeadOf(head.index);
  return { kvHead, heads: heads[head.run][head.layer].filter((other) => kvHeadOf(other.index) === kvHead) };
}

// Where the scale of a head ends: at its largest weight, but not below four times what equal weights would be. Heads that
// are compared have one scale. Or at 1, where that is wanted.
export const leastEnd = (head) => Math.min(1, 4 / head.keys);
export function endOfScale(head, ...others) {
  if (state.span === "one") return 1;
  return Math.min(1, Math.max(leastEnd(head), ...[head, ...others].map((each) => each.facts.largest)));
}

export function nameOf(head) {
  const run = attention.runs[head.run];
  const layer = run.layers[head.layer];
  const layerName = run.layers.length > 1 || layer.name ? layer.name || `Layer ${head.layer}` : "";
  return [attention.runs.length > 1 ? run.name || `Run ${head.run}` : "", layerName, `Head ${head.index}`].filter(Boolean).join(" · ");
}
