// SPDX-License-Identifier: Apache-2.0
// The guided tour: a few sentences below the page, step by step, and a mark on what they are about.
import { byId } from "../../view/page/dom.js";
import { lessons } from "./lessons.js";
import { goOnTour, state } from "./state.js";

let shown = 0; // the step that stands there

byId("take-tour").addEventListener("click", () => goOnTour(1));
byId("tour-next").addEventListener("click", () => goOnTour((state.tour + 1) % (lessons.length + 1)));
byId("tour-back").addEventListener("click", () => goOnTour(Math.max(1, state.tour - 1)));
byId("tour-leave").addEventListener("click", () => goOnTour(0));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.tour > 0) goOnTour(0);
});

// In the middle of what scrolls, or from its beginning where it is too large for that.
function bringIntoSight(marked) {
  for (const each of [marked[marked.length - 1], marked[0]]) each?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const main = document.querySelector("main");
  const boxes = marked.map((each) => each.getBoundingClientRect());
  const [top, bottom] = [Math.min(...boxes.map((box) => box.top)), Math.max(...boxes.map((box) => box.bottom))];
  const room = main.getBoundingClientRect();
  const above = Math.max(12, (room.height - (bottom - top)) / 2);
  if (top < room.top || bottom > room.bottom || room.width < 700) main.scrollTop += top - room.top - above;
}

// After all else is drawn.
export function drawTour() {
  const lesson = lessons[state.tour - 1];
  const isHere = byId("tour").contains(document.activeElement) || document.activeElement === document.body;
  byId("tour").hidden = !lesson;
  byId("take-tour").hidden = Boolean(lesson);
  const marked = lesson ? [...document.querySelectorAll(lesson.marks)] : [];
  for (const each of document.querySelectorAll(".toured")) each.classList.remove("toured");
  for (const each of marked) each.classList.add("toured");
  if (state.tour === shown) return;
  const before = shown;
  shown = state.tour;
  if (!lesson) {
    byId("steps").scrollLeft = 0;
    if (isHere) byId("take-tour").focus();
    return;
  }
  byId("tour-title").textContent = `${state.tour} of ${lessons.length} · ${lesson.title}`;
  byId("tour-words").textContent = lesson.words;
  if (before === 0 || document.activeElement === document.body || (state.tour === 1 && isHere)) byId("tour-next").focus();
  byId("tour-back").disabled = state.tour === 1; // what is disabled has no keyboard
  byId("tour-next").textContent = state.tour === lessons.length ? "Done" : "Next";
  bringIntoSight(marked);
}
