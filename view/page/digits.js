// SPDX-License-Identifier: Apache-2.0
// Floats as they are written.

// A weight with the fewest digits that mean this very float, as NumPy prints it.
export function digitsOf(weight) {
  if (!Number.isFinite(weight)) return String(weight);
  for (let digits = 1; digits <= 9; ++digits) {
    const text = weight.toPrecision(digits);
    if (Math.fround(Number(text)) === Math.fround(weight)) return weight !== 0 && Math.abs(weight) < 1e-4 ? weight.toExponential(digits - 1) : String(Number(text));
  }
  return String(weight);
}
