// SPDX-License-Identifier: Apache-2.0
// The head as a table: every query, and the keys that it looks at most, coloured as everywhere. Eyes and screen readers read it alike.
import { attention } from "./blobs.js";
import { seekChosen } from "./chosen.js";
import { cssColour, inkOn, strength } from "./colour.js";
import { digitsOf } from "./digits.js";
import { byId, element, refill } from "./dom.js";
import { endOfScale } from "./head.js";
import { change, state } from "./state.js";
import { tokensOf } from "./tokens.js";
import { visible } from "./visible.js";
import { percent } from "./words.js";

const tablePanel = byId("table");
const strongest = 4; // keys of a query
const longestTable = 120; // queries at once

function header(text, scope) {
  const made = element("th", text);
  made.scope = scope;
  return made;
}

// How much, on the colour that the legend has for it.
function share(head, weight) {
  const made = element("span", percent(weight));
  const t = strength(weight, state.scale, endOfScale(head), attention.octaves);
  Object.assign(made.style, { background: cssColour(t, state.theme === "dark"), color: inkOn(t, state.theme === "dark") });
  return made;
}

function tableRow(head, query) {
  const { queries, keys } = tokensOf[head.run];
  const line = element("tr");
  const name = header("", "row");
  const button = element("button", visible(queries[query]));
  button.type = "button";
  button.className = "plain";
  button.dataset.name = String(query);
  button.addEventListener("click", () => {
    change({ query, key: -1 });
    seekChosen();
  });
  name.append(button);
  line.append(element("td", String(query)), name);
  if (query === state.query) line.setAttribute("aria-current", "true");
  const found = head.largestOf(query, strongest);
  for (let n = 0; n < strongest; ++n) {
    const cell = element("td");
    if (found[n]) {
      const [key, weight] = found[n];
      cell.append(element("bdi", visible(keys[key])), " ", share(head, weight));
      cell.title = `key ${key}: ${digitsOf(weight)}`;
    }
    line.append(cell);
  }
  return line;
}

export function drawTable(head) {
  const first = Math.max(0, Math.min(head.queries - longestTable, (state.query < 0 ? 0 : state.query) - (longestTable >> 1)));
  const last = Math.min(head.queries, first + longestTable);
  const table = element("table");
  const heading = element("tr");
  heading.append(element("td"), ...["Query", "looks most at", "then at", "then at", "then at"].map((text) => header(text, "col")));
  const stretch = last - first < head.queries ? ` Queries ${first} to ${last - 1} of ${head.queries.toLocaleString("en")}; choose one to move.` : "";
  const body = element("tbody");
  for (let query = first; query < last; ++query) body.append(tableRow(head, query));
  const top = element("thead");
  top.append(heading);
  table.append(element("caption", `What every query looks at most.${stretch}`), top, body);
  refill(tablePanel, [table]);
}

