// SPDX-License-Identifier: Apache-2.0
// Redraws a box without replacing what stays: the keyboard, and what is selected in a number, remain where they were.

function redrawAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) if (name !== "style" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText; // the page's policy refuses the attribute
}

function redrawNode(old, fresh) {
  const isCanvas = fresh.nodeName === "CANVAS"; // its pixels are no attributes
  if (isCanvas || old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (fresh.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return undefined;
  }
  const isOtherNumber = old.nodeName === "INPUT" && old.defaultValue !== fresh.defaultValue; // else what is being typed stays
  redrawAttributes(old, fresh);
  if (isOtherNumber) old.value = fresh.defaultValue;
  return redraw(old, [...fresh.childNodes]);
}

// Makes the children of a box look like these, which are then nobody's.
export function redraw(box, children) {
  const before = [...box.childNodes];
  before.slice(children.length).forEach((old) => old.remove());
  children.forEach((fresh, n) => (before[n] ? redrawNode(before[n], fresh) : box.append(fresh)));
}
