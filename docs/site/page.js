// SPDX-License-Identifier: Apache-2.0
// What a page of the site does beside the theme: tables, code and charts that are wider than the screen say so, the keyboard
// reaches them, and what is copied from a session can be pasted.
const SCROLLED = ".md-typeset pre > code, .md-typeset__scrollwrap, .drawing-frame";

// .more stands at the side where there is more; the style fades what is cut there.
function measure(box) {
  const rest = box.scrollWidth - box.clientWidth - box.scrollLeft;
  const isWide = box.scrollWidth > box.clientWidth + 1;
  box.classList.toggle("wide", isWide);
  box.classList.toggle("more", isWide && rest > 2);
  if (isWide) box.tabIndex = 0;
}

function watchWidths() {
  const boxes = document.querySelectorAll(SCROLLED);
  const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => measure(target)));
  for (const box of boxes) {
    observer.observe(box);
    box.addEventListener("scroll", () => measure(box), { passive: true });
    for (const picture of box.querySelectorAll("img")) picture.addEventListener("load", () => measure(box));
  }
}

// Of a session in Python, what was typed: no prompts and no answers.
function typedIn(session) {
  const lines = session.split("\n").filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
  return lines.map((line) => line.slice(4)).join("\n");
}

// Before the theme's own handler, which copies what the button says.
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-clipboard-target]");
  const text = button && document.querySelector(button.dataset.clipboardTarget)?.textContent;
  if (text?.startsWith(">>> ")) button.dataset.clipboardText = typedIn(text);
}, true);

// The theme puts a landmark beside every block of code, when it is seen; each gets a name of its own.
let named = 0;
function nameButtons() {
  for (const nav of document.querySelectorAll(".md-code__nav:not([aria-label])")) nav.setAttribute("aria-label", `Code ${(named += 1)}`);
}

addEventListener("DOMContentLoaded", () => {
  nameButtons();
  new MutationObserver(nameButtons).observe(document.body, { childList: true, subtree: true });
});
addEventListener("load", watchWidths);
