// SPDX-License-Identifier: Apache-2.0
// A token as it is shown: whatever it holds, it is seen and does nothing.

// Control characters and those that turn the direction of text or have no width.
const unseen = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

function named(character) {
  if (character === "\n") return "⏎";
  if (character === "\t") return "⇥";
  return `⟨${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

// With spaces in front as tokenizers mark them: Ġ (byte-level BPE) and ▁ (SentencePiece) become a dot, Ċ a line's end.
export function visible(token) {
  return token.replace(/^[ \u0120\u2581]/, "·").replace(/\u010a/g, "⏎").replace(unseen, named);
}

// The same as running text: the space in front is a space, and ## is left out.
export function asProse(token) {
  return token.replace(/^[\u0120\u2581]/, " ").replace(/^##(?=.)/, "").replace(/\u010a/g, "\n").replace(unseen, (c) => (c === "\n" ? c : named(c)));
}

// Whole words, and WordPiece, have no marks for spaces, so their words are set apart.
export function areWords(tokens) {
  return !tokens.some((token) => /^[ \u0120\u2581]/.test(token));
}

// WordPiece: the token goes on with the word before it.
export const goesOn = (token) => /^##./.test(token);

export function shortened(text, longest) {
  const characters = Array.from(text);
  return characters.length <= longest ? text : `${characters.slice(0, longest - 1).join("")}…`;
}
