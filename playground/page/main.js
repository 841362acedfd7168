// SPDX-License-Identifier: Apache-2.0
// Starts heed, and computes and draws all there is whenever something changes: it is little.
import { drawCaches } from "./cache.js";
import { buildControls, drawControls } from "./controls.js";
import { attend, startHeed } from "./heed.js";
import { drawWeights } from "./map.js";
import { readModel } from "./model.js";
import { hiddenPairs, notices, onChange, readAddress, state, words } from "./state.js";
import { drawSteps } from "./steps.js";
import { drawTour } from "./tour.js";
import { vectorsFor } from "./vectors.js";

const number = (text) => (text === "" ? NaN : Number(text));

function draw() {
  const tokens = words().length;
  drawControls();
  const refusal = document.getElementById("refusal");
  const notice = document.getElementById("notice");
  notice.textContent = notices();
  notice.hidden = !notice.textContent;
  try {
    if (tokens === 0) throw new Error("tokens: none; there must be at least one");
    const { heads, kvHeads, dim } = state;
    const problem = { tokens, heads, kvHeads, dim, scale: number(state.scale), softcap: number(state.softcap) };
    const vectors = vectorsFor(kvHeads);
    const hidden = hiddenPairs(tokens);
    const found = attend(problem, vectors, hidden);
    drawWeights(found, hidden);
    drawSteps(problem, vectors, found, hidden);
    drawCaches(problem);
    refusal.hidden = true;
  } catch (error) {
    refusal.textContent = error.message; // heed's own sentence; what is drawn stays as it was
    refusal.hidden = false;
  }
  drawTour();
}

// Printed, the page is light.
let themeOnScreen;
function drawIn(theme) {
  state.theme = theme;
  draw();
}
function drawForPaper() {
  addEventListener("beforeprint", () => {
    themeOnScreen = state.theme;
    drawIn("light");
  });
  addEventListener("afterprint", () => drawIn(themeOnScreen));
}

async function start() {
  document.documentElement.dataset.theme = state.theme;
  const missing = ["WebAssembly", "DecompressionStream"].filter((name) => !globalThis[name]);
  if (missing.length) throw new Error(`This page needs ${missing.join(" and ")}, which this browser has not or has switched off.`);
  const [{ version, target }] = await Promise.all([startHeed(), readModel()]);
  buildControls();
  document.getElementById("engine").textContent = `computed in this page by heed ${version} (${target})`;
  onChange(draw);
  drawForPaper();
  readAddress();
}

// Without heed there is nothing to play with.
function sayWhyNot(error) {
  for (const each of document.querySelectorAll("main > section, header button, #engine")) each.hidden = true;
  Object.assign(document.getElementById("refusal"), { textContent: error.message, hidden: false });
}

start().catch(sayWhyNot);
