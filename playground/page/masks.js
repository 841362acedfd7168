// SPDX-License-Identifier: Apache-2.0
// Masks: which keys a query does not see. A byte for every query and key, written as a digit for four of them.

export const masks = {
  none: ["None", () => false],
  causal: ["Causal: no later word", (query, key) => key > query],
  window: ["The last three", (query, key) => key > query || key < query - 2],
  self: ["All but itself", (query, key) => key === query],
  drawn: ["Drawn by hand", null],
};

export function asDigits(pairs) {
  if (!pairs.includes(1)) return "";
  const digits = new Uint8Array(Math.ceil(pairs.length / 4));
  pairs.forEach((hidden, i) => (digits[i >> 2] |= hidden << (i & 3)));
  return Array.from(digits, (digit) => digit.toString(16)).join("");
}

export function digitsFor(name, count) {
  const [, hides] = masks[name];
  return asDigits(Uint8Array.from({ length: count * count }, (_, i) => (hides(Math.floor(i / count), i % count) ? 1 : 0)));
}
