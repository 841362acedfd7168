// SPDX-License-Identifier: Apache-2.0
// What a page of the site does beside the theme: tables, code and charts that are wider than the screen say so, the keyboard
// reaches them, what is copied from a session can be pasted, and choices are tabs.
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

// Headings of a list of choices become tabs; without a script they stand below each other.
function makeTabs(box) {
  const tabs = document.createElement("div");
  tabs.setAttribute("role", "tablist");
  tabs.setAttribute("aria-label", "How to install heed for");
  const choose = (wanted) => {
    for (const tab of tabs.children) {
      const isWanted = tab === wanted;
      tab.setAttribute("aria-selected", isWanted);
      tab.tabIndex = isWanted ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isWanted;
    }
  };
  for (const heading of box.querySelectorAll("h3")) {
    const [tab, panel] = [document.createElement("button"), document.createElement("div")];
    const name = heading.firstChild.textContent.trim();
    Object.assign(tab, { type: "button", id: `tab-${heading.id}`, textContent: name });
    Object.assign(panel, { id: heading.id });
    for (const [element, role] of [[tab, "tab"], [panel, "tabpanel"]]) element.setAttribute("role", role);
    tab.setAttribute("aria-controls", panel.id);
    panel.setAttribute("aria-labelledby", tab.id);
    while (heading.nextElementSibling && heading.nextElementSibling.tagName !== "H3") panel.append(heading.nextElementSibling);
    heading.replaceWith(panel);
    tabs.append(tab);
    tab.addEventListener("click", () => choose(tab));
  }
  tabs.addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (!step) return;
    const all = [...tabs.children];
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    choose(next);
    next.focus();
  });
  box.prepend(tabs);
  choose(tabs.firstElementChild);
}

// The playground inside a page has the page's colours.
function colourPlayground() {
  const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  for (const frame of document.querySelectorAll("iframe.live")) frame.src = `${frame.src.replace(/&theme=.*/, "")}&theme=${theme}`;
}

addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".choices").forEach(makeTabs);
  if (document.querySelector("iframe.live")) {
    colourPlayground();
    new MutationObserver(colourPlayground).observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  }
  nameButtons();
  new MutationObserver(nameButtons).observe(document.body, { childList: true, subtree: true });
});
addEventListener("load", watchWidths);
