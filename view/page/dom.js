// SPDX-License-Identifier: Apache-2.0
// Elements of the page, found and made. Text is never markup.

export const byId = (id) => document.getElementById(id);

export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Puts other children into a box. The keyboard stays at the button of the same `data-name`, where there still is one.
export function refill(box, children) {
  const at = box.contains(document.activeElement) ? document.activeElement.dataset.name : undefined;
  box.replaceChildren(...children);
  if (at !== undefined) [...box.querySelectorAll("[data-name]")].find((each) => each.dataset.name === at)?.focus({ preventScroll: true });
}

// Fingers need more room than a pointer.
export const isTouched = matchMedia("(pointer: coarse)");
