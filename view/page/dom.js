// SPDX-License-Identifier: Apache-2.0
// Elements of the page, found and made. Text is never markup.

export const byId = (id) => document.getElementById(id);

export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Fingers need more room than a pointer.
export const isTouched = matchMedia("(pointer: coarse)");
