// SPDX-License-Identifier: Apache-2.0
// Lines from queries on the left to keys on the right, for a stretch short enough to follow them.
import { attention } from "./blobs.js";
import { strength } from "./colour.js";
import { endOfScale } from "./head.js";
import { change, state } from "./state.js";
import { tokensOf } from "./tokens.js";
import { shortened, visible } from "./visible.js";

const lineHeight = 21;
const canvas = document.querySelector("#lines canvas");
let drawn = null;

// Which tokens stand there: as many as fit, around the chosen one.
function stretch(count, centre, fit) {
  const first = Math.max(0, Math.min(count - fit, Math.round(centre - fit / 2)));
  return { first, last: Math.min(count, first + fit) };
}

export function drawLines(head) {
  const ratio = devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  if (width === 0) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const [ink, accent, quiet] = ["--ink", "--accent", "--quiet"].map((name) => style.getPropertyValue(name).trim());
  const fit = Math.floor((height - 34) / lineHeight);
  const queries = stretch(head.queries, state.query >= 0 ? state.query : state.y + fit / 2, fit);
  const shift = (attention.runs[head.run].first_position ?? 0);
  const keys = stretch(head.keys, (state.query >= 0 ? state.query : state.y + fit / 2) + shift, fit);
  const left = Math.max(110, width / 2 - 260);
  const right = Math.min(width - 110, width / 2 + 260);
  const y = (n, from) => 34 + (n - from.first + 0.5) * lineHeight;
  drawn = { queries, keys, left, right, head };
  pen.font = '13px "Inter", system-ui, "Noto Sans", "DejaVu Sans", sans-serif';
  pen.textBaseline = "middle";
  for (let i = queries.first; i < queries.last; ++i) {
    const row = head.row(i);
    for (let j = keys.first; j < keys.last; ++j) {
      if (!(row[j] > 0)) continue;
      const t = strength(row[j], state.scale, endOfScale(head), attention.octaves);
      const isChosen = state.query < 0 || i === state.query;
      if (t < 0.04 || !isChosen) {
        if (t < 0.25) continue;
      }
      pen.globalAlpha = isChosen ? Math.min(1, 0.06 + 0.94 * t) : 0.1 * t;
      pen.strokeStyle = accent;
      pen.lineWidth = 0.6 + 3.4 * t;
      pen.beginPath();
      pen.moveTo(left + 8, y(i, queries));
      pen.bezierCurveTo(left + (right - left) * 0.4, y(i, queries), left + (right - left) * 0.6, y(j, keys), right - 8, y(j, keys));
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
  const names = tokensOf[head.run];
  pen.fillStyle = quiet;
  pen.textAlign = "right";
  pen.fillText("query", left, 16);
  pen.textAlign = "left";
  pen.fillText("key", right, 16);
  for (let i = queries.first; i < queries.last; ++i) {
    pen.textAlign = "right";
    pen.fillStyle = i === state.query ? accent : ink;
    pen.fillText(shortened(visible(names.queries[i]), 14), left, y(i, queries));
  }
  for (let j = keys.first; j < keys.last; ++j) {
    pen.textAlign = "left";
    pen.fillStyle = ink;
    pen.fillText(shortened(visible(names.keys[j]), 14), right, y(j, keys));
  }
  const isPart = queries.last - queries.first < head.queries;
  canvas.setAttribute("aria-label", `Lines from queries ${queries.first} to ${queries.last - 1} to keys ${keys.first} to ${keys.last - 1}`);
  return isPart ? `queries ${queries.first} to ${queries.last - 1} of ${head.queries}; choose a token to move` : "";
}

canvas.addEventListener("pointermove", (event) => {
  if (!drawn) return;
  const box = canvas.getBoundingClientRect();
  const n = drawn.queries.first + Math.floor((event.clientY - box.top - 34) / lineHeight);
  canvas.style.cursor = n >= drawn.queries.first && n < drawn.queries.last ? "pointer" : "";
});
canvas.addEventListener("click", (event) => {
  if (!drawn) return;
  const box = canvas.getBoundingClientRect();
  const n = drawn.queries.first + Math.floor((event.clientY - box.top - 34) / lineHeight);
  if (n >= drawn.queries.first && n < drawn.queries.last) change({ query: n === state.query ? -1 : n });
});
