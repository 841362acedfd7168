// SPDX-License-Identifier: Apache-2.0
// One query, from its vector to its result: scores, softmax and sum, with every number.
import { cssColour } from "../../view/page/colour.js";
import { digitsOf } from "../../view/page/digits.js";
import { visible } from "../../view/page/visible.js";
import { digits } from "./map.js";
import { change, state, words } from "./state.js";
import { editsWith, placeOf } from "./vectors.js";

function part(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// The numbers of a vector, each of which can be changed.
function inputs(kind, head, token, floats) {
  const cell = part("td", "", `vector ${kind}`);
  for (let d = 0; d < state.dim; ++d) {
    const input = document.createElement("input");
    input.type = "number";
    input.step = "0.1";
    input.value = digitsOf(floats[placeOf(head, token, d, words().length)]);
    input.dataset.place = `${kind}.${head}.${token}.${d}`;
    input.setAttribute("aria-label", `${{ q: "Query", k: "Key", v: "Value" }[kind]} of token ${token}, number ${d}`);
    input.addEventListener("change", () => {
      if (Number.isFinite(input.valueAsNumber)) change({ edits: editsWith(kind, head, token, d, input.valueAsNumber) });
    });
    cell.append(input);
  }
  return cell;
}

function numbers(floats) {
  const cell = part("td", "", "vector");
  for (const x of floats) cell.append(part("output", digits(x)));
  return cell;
}

// What stands in each column: its name, how it comes about, and why.
function heading(scale, hasCap) {
  const row = part("tr", "", "columns");
  const explained = [
    ["word", "looked at", "the token looked at", "vector"],
    ["key", "k", "its key: what it offers to be found by", "vector k"],
    ["score", `q·k×${digits(scale)}`, "how well the key answers the query", "score"],
    ...(hasCap ? [["capped", "by softcap", "softcap × tanh(s / softcap)", "score"]] : []),
    ["masked", "by mask", "the score, −∞ where the mask hides the key", "score"],
    ["power", "e^(s−max)", "the exponential, of the difference to the largest score", "share"],
    ["weight", "÷ sum", "the exponential divided by the sum of all", "weight"],
    ["value", "v", "its value: what the query takes from it, by its weight", "vector v"],
  ];
  row.append(
    ...explained.map(([name, how, title, kind]) => {
      const cell = part("th", name, kind);
      cell.scope = "col";
      cell.title = title;
      cell.append(part("small", how));
      return cell;
    }),
  );
  return row;
}

export function drawSteps(problem, vectors, found) {
  const tokens = words().map(visible);
  const { head, query, dim } = state;
  const count = tokens.length;
  const kv = Math.floor(head / (state.heads / state.kvHeads));
  const row = (head * count + query) * count;
  const scores = Array.from(found.masked.subarray(row, row + count));
  const largest = Math.max(...scores);
  const exponentials = scores.map((score) => (score === -Infinity ? 0 : Math.exp(score - largest)));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  const hasCap = !Number.isNaN(problem.softcap);
  const scale = Number.isNaN(problem.scale) ? 1 / Math.sqrt(dim) : problem.scale;

  const table = part("table");
  const asking = part("tr", "", "asking");
  const from = part("th", tokens[query]);
  from.scope = "row";
  const asks = part("td", "← its query q: what it asks for", "quiet");
  asks.colSpan = hasCap ? 6 : 5;
  asking.append(from, inputs("q", head, query, vectors.q), asks);
  table.append(asking, heading(scale, hasCap));
  for (let key = 0; key < count; ++key) {
    const line = part("tr", "", scores[key] === -Infinity ? "unseen" : "");
    const name = part("th", tokens[key]);
    name.scope = "row";
    const weight = part("td", digits(found.weights[row + key]), "weight");
    weight.title = digitsOf(found.weights[row + key]);
    const bar = part("i");
    bar.style.width = `${100 * Math.min(1, found.weights[row + key] || 0)}%`;
    bar.style.background = cssColour(0.7, state.theme === "dark");
    weight.append(bar);
    line.append(
      name,
      inputs("k", kv, key, vectors.k),
      part("td", digits(found.raw[row + key]), "score"),
      ...(hasCap ? [part("td", digits(found.softcapped[row + key]), "score")] : []),
      part("td", digits(scores[key]), "score"),
      part("td", digits(exponentials[key]), "share"),
      weight,
      inputs("v", kv, key, vectors.v),
    );
    table.append(line);
  }
  const total = part("tr", "", "total");
  const text = part("th", "The sum of weight × v is the result");
  text.colSpan = hasCap ? 5 : 4;
  text.scope = "row";
  const weights = Array.from(found.weights.subarray(row, row + count));
  const result = numbers(found.out.subarray((head * count + query) * dim, (head * count + query + 1) * dim));
  result.id = "result";
  total.append(text, part("td", sum ? digits(sum) : "0", "share"), part("td", digits(weights.reduce((a, b) => a + b, 0)), "weight"), result);
  table.append(total);
  document.getElementById("steps").replaceChildren(table);
  document.getElementById("query-name").textContent = `${tokens[query]} in head ${head}`;
}
