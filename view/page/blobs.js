// SPDX-License-Identifier: Apache-2.0
// What the page holds: one description, and compressed bytes that are unpacked when somebody looks.
import { unpack } from "./unpack.js";

export const attention = JSON.parse(document.getElementById("attention").textContent);

const unpacked = new Map();

// The bytes of a blob, unpacked once.
export function bytesOf(number) {
  if (!unpacked.has(number)) unpacked.set(number, unpack(`blob-${number}`));
  return unpacked.get(number);
}

// Four-byte words: the page keeps all their first bytes, then all second, third and fourth.
export async function wordsOf(number) {
  const planes = await bytesOf(number);
  const count = planes.length / 4;
  const words = new Uint32Array(count);
  for (let i = 0; i < count; ++i) {
    words[i] = (planes[i] | (planes[count + i] << 8) | (planes[2 * count + i] << 16) | (planes[3 * count + i] << 24)) >>> 0;
  }
  return words;
}
