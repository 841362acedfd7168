// SPDX-License-Identifier: Apache-2.0
// The map of a head, or of the difference of two: a canvas that zooms from the whole sequence to single weights.
import { attention } from "./blobs.js";
import { codes, pixelOfDifference, pixelsOfCodes, weightOf } from "./colour.js";
import { endOfScale } from "./head.js";
import { change, state } from "./state.js";
import { drawEdges, edgeWidths } from "./edges.js";

const largestCell = 46; // pixels; a token's word fits beside it
const maxPixels = 72;

function paper() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { hidden: read("--hidden"), hatch: read("--hatch"), ink: read("--ink"), quiet: read("--quiet"), accent: read("--accent"), rule: read("--rule"), card: read("--card"), paper: read("--paper") };
}

// What lies under masks: lines that no weight looks like.
function hatching(context, colours, ratio) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(6 * ratio);
  const pen = tile.getContext("2d");
  pen.fillStyle = colours.hidden;
  pen.fillRect(0, 0, tile.width, tile.height);
  pen.strokeStyle = colours.hatch;
  pen.lineWidth = 1.1 * ratio;
  for (const shift of [-1, 0, 1]) {
    pen.beginPath();
    pen.moveTo(shift * tile.width - 1, tile.height + 1);
    pen.lineTo((shift + 1) * tile.width + 1, -1);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

export class Heatmap {
  // `other` makes it the map of head - other.
  constructor(canvas, head, other, onHover) {
    Object.assign(this, { canvas, head, other, onHover });
    this.compared = null; // with whom it shares a scale
    this.sheet = document.createElement("canvas");
    this.loaded = new Map();
    this.pointers = new Map(); // those that are down, by id
    this.isDragged = false;
    this.listen();
  }

  // How many pixels a weight takes along each axis, and where the map begins.
  camera() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const edges = edgeWidths(this.head, { width, height });
    const room = { width: Math.max(10, width - edges.left - 2), height: Math.max(10, height - edges.top - 2) };
    let fitX = Math.min(largestCell, room.width / this.head.keys);
    let fitY = Math.min(largestCell, room.height / this.head.queries);
    if (fitX < 4 * fitY && fitY < 4 * fitX) fitX = fitY = Math.min(fitX, fitY);
    const most = Math.max(1, maxPixels / Math.min(fitX, fitY));
    const zoom = Math.min(Math.max(1, state.zoom), most);
    const stepX = Math.min(fitX * zoom, Math.max(maxPixels, fitX));
    const stepY = Math.min(fitY * zoom, Math.max(maxPixels, fitY));
    const [seenX, seenY] = [room.width / stepX, room.height / stepY];
    const x = Math.min(Math.max(0, state.x), Math.max(0, this.head.keys - seenX));
    const y = Math.min(Math.max(0, state.y), Math.max(0, this.head.queries - seenY));
    const left = edges.left + Math.max(0, (room.width - this.head.keys * stepX) / 2); // a small map stands in the middle
    return { x, y, stepX, stepY, zoom, most, left, top: edges.top, edges, room, seenX: Math.min(seenX, this.head.keys), seenY: Math.min(seenY, this.head.queries) };
  }

  level(camera) {
    return this.head.levelFor(0.75 / Math.max(camera.stepX, camera.stepY));
  }

  // The codes of a level if they are unpacked; else unpacks them and draws again.
  codesOf(head, level) {
    const key = `${head.run} ${level.pool} ${state.kind}`;
    const found = this.loaded.get(key);
    if (!found) {
      this.loaded.set(key, "coming");
      head.codes(level, state.kind).then((loaded) => {
        this.loaded.set(key, loaded);
        this.draw();
      });
    }
    return found instanceof Uint8Array ? found : null;
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    const { width, height } = this.canvas.getBoundingClientRect();
    if (width === 0) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    const colours = paper();
    const camera = this.camera();
    const level = this.level(camera);
    this.shown = { camera, level };
    context.scale(ratio, ratio);
    const right = camera.left + Math.min(camera.room.width, (this.head.keys - camera.x) * camera.stepX);
    const bottom = camera.top + Math.min(camera.room.height, (this.head.queries - camera.y) * camera.stepY);
    context.save();
    context.beginPath();
    context.rect(camera.left, camera.top, right - camera.left, bottom - camera.top);
    context.clip();
    context.save();
    context.scale(1 / ratio, 1 / ratio);
    context.fillStyle = hatching(context, colours, ratio);
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.restore();
    this.drawCells(context, camera, level);
    this.drawExact(context, camera, level);
    this.drawChosen(context, camera, colours);
    context.restore();
    context.strokeStyle = colours.rule;
    context.strokeRect(camera.left - 0.5, camera.top - 0.5, right - camera.left + 1, bottom - camera.top + 1);
    drawEdges(context, this.head, camera, colours, { right, bottom }, state);
    const touched = camera.zoom > 1 ? "none" : "pan-y"; // a finger moves the page past a map that is seen whole
    if (this.canvas.style.touchAction !== touched) this.canvas.style.touchAction = touched;
  }

  drawCells(context, camera, level) {
    const mine = this.codesOf(this.head, level);
    const theirs = this.other && this.codesOf(this.other, this.other.levels.find((each) => each.pool === level.pool) ?? level);
    if (!mine || (this.other && !theirs)) return;
    const first = { column: Math.floor(camera.x / level.pool), row: Math.floor(camera.y / level.pool) };
    const columns = Math.min(level.columns, Math.ceil((camera.x + camera.seenX) / level.pool)) - first.column;
    const rows = Math.min(level.rows, Math.ceil((camera.y + camera.seenY) / level.pool)) - first.row;
    if (columns <= 0 || rows <= 0) return;
    if (this.sheet.width < columns || this.sheet.height < rows) Object.assign(this.sheet, { width: columns, height: rows });
    const image = new ImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const paint = this.painter(mine, theirs);
    for (let row = 0; row < rows; ++row) {
      const from = (first.row + row) * level.columns + first.column;
      for (let column = 0; column < columns; ++column) pixels[row * columns + column] = paint(from + column);
    }
    const sheet = this.sheet.getContext("2d");
    sheet.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(
      this.sheet, 0, 0, columns, rows,
      camera.left + (first.column * level.pool - camera.x) * camera.stepX,
      camera.top + (first.row * level.pool - camera.y) * camera.stepY,
      columns * level.pool * camera.stepX,
      rows * level.pool * camera.stepY,
    );
  }

  painter(mine, theirs) {
    const dark = state.theme === "dark";
    if (!theirs) {
      const pixels = this.pixels(dark);
      return (cell) => pixels[mine[cell]];
    }
    const weights = Float32Array.from({ length: 256 }, (_, code) => weightOf(code, attention.octaves));
    const largest = this.largestDifference();
    return (cell) => {
      const [a, b] = [mine[cell], theirs[cell]];
      if (a === codes.hidden && b === codes.hidden) return 0;
      const difference = (a === codes.hidden ? 0 : weights[a]) - (b === codes.hidden ? 0 : weights[b]);
      return pixelOfDifference(difference, largest, dark);
    };
  }

  pixels(dark) {
    const largest = this.compared ? endOfScale(this.head, this.compared) : endOfScale(this.head);
    return pixelsOfCodes({ scale: state.scale, largest, octaves: attention.octaves, dark });
  }

  largestDifference() {
    return this.head.largestDifference(this.other) || 1;
  }

  // Where cells are pooled, the exact largest weights of the rows in sight stand on top of them.
  drawExact(context, camera, level) {
    if (this.other || this.head.isExact || !this.head.topKeys || level !== this.head.finest || camera.stepX < 3 || level.pool === 1) return;
    const dark = state.theme === "dark";
    const pixels = this.pixels(dark);
    const lastRow = Math.min(this.head.queries, Math.ceil(camera.y + camera.seenY));
    for (let i = Math.floor(camera.y); i < lastRow; ++i) {
      this.head.eachTop(i, (key, weight) => {
        if (key + 1 < camera.x || key > camera.x + camera.seenX) return;
        const step = Math.round(((Math.log2(weight) + attention.octaves) * (codes.one - codes.least)) / attention.octaves);
        const colour = pixels[codes.least + Math.min(codes.one - codes.least, Math.max(0, step))];
        context.fillStyle = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
        context.fillRect(camera.left + (key - camera.x) * camera.stepX, camera.top + (i - camera.y) * camera.stepY, camera.stepX, camera.stepY);
      });
    }
  }

  drawChosen(context, camera, colours) {
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5;
    const x = camera.left + (state.key - camera.x) * camera.stepX;
    const y = camera.top + (state.query - camera.y) * camera.stepY;
    const far = 1e5;
    if (state.query >= 0) context.strokeRect(camera.left - far, y - 0.75, 2 * far, Math.max(2, camera.stepY + 1.5));
    if (state.key >= 0) context.strokeRect(x - 0.75, camera.top - far, Math.max(2, camera.stepX + 1.5), 2 * far);
    context.lineWidth = 1;
  }

  // Which weight a point of the window is over, or null.
  cellAt(clientX, clientY) {
    const at = this.choiceAt(clientX, clientY);
    return at && at.query >= 0 && at.key >= 0 ? { query: at.query, key: at.key } : null;
  }

  // What a click there chooses: a weight, the token of a word at an edge, or null.
  choiceAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const camera = this.camera();
    const [x, y] = [clientX - box.left - camera.left, clientY - box.top - camera.top];
    const key = x < 0 ? -1 : Math.floor(camera.x + x / camera.stepX);
    const query = y < 0 ? -1 : Math.floor(camera.y + y / camera.stepY);
    const isAny = query < this.head.queries && key < this.head.keys && Math.max(query, key) >= 0;
    return isAny ? { query, key, direction: query < 0 ? "from" : "to" } : null;
  }

  // Where the map zooms if nobody points: at the chosen weight, or at the diagonal in the middle row, beside which most is hidden.
  focus(camera) {
    const within = (at, room) => Math.min(room, Math.max(0, at));
    const row = camera.y + camera.seenY / 2;
    const diagonal = row + (attention.runs[this.head.run].first_position ?? 0);
    const [key, query] = state.query < 0 || state.key < 0 ? [diagonal, row] : [state.key + 0.5, state.query + 0.5];
    return { x: within((key - camera.x) * camera.stepX, camera.room.width), y: within((query - camera.y) * camera.stepY, camera.room.height) };
  }

  // Zooms by a factor and keeps the point of the window where it is.
  zoomAt(factor, clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const before = this.camera();
    const atX = clientX === undefined ? this.focus(before).x : Math.max(0, clientX - box.left - before.left);
    const atY = clientY === undefined ? this.focus(before).y : Math.max(0, clientY - box.top - before.top);
    const x = before.x + atX / before.stepX;
    const y = before.y + atY / before.stepY;
    state.zoom = Math.min(Math.max(1, before.zoom * factor), before.most);
    const after = this.camera();
    change({ x: Math.max(0, x - atX / after.stepX), y: Math.max(0, y - atY / after.stepY) });
  }

  pan(weightsX, weightsY) {
    const camera = this.camera();
    change({ x: camera.x + weightsX, y: camera.y + weightsY });
    const kept = this.camera();
    change({ x: kept.x, y: kept.y });
  }

  // Moves the map so that a weight is in sight.
  show(query, key) {
    const camera = this.camera();
    const within = (at, from, seen) => (at < from ? at : at + 1 > from + seen ? at + 1 - seen : from);
    change({ x: within(key, camera.x, camera.seenX), y: within(query, camera.y, camera.seenY) });
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const pixels = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
      this.zoomAt(Math.exp(-pixels * 0.0022), event.clientX, event.clientY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.isDragged = this.pointers.size > 1;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.follow(event));
    canvas.addEventListener("pointerup", (event) => {
      const choice = this.choiceAt(event.clientX, event.clientY);
      if (this.pointers.size === 1 && !this.isDragged && choice) change(choice);
      this.forget(event);
    });
    canvas.addEventListener("pointercancel", (event) => this.forget(event));
    canvas.addEventListener("pointerleave", () => this.onHover(this, null));
    canvas.addEventListener("dblclick", (event) => this.zoomAt(3, event.clientX, event.clientY));
  }

  forget(event) {
    this.canvas.classList.remove("dragging");
    this.pointers.delete(event.pointerId);
  }

  // One pointer that is down moves the map; two move it and zoom by how far they are apart.
  follow(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.onHover(this, event);
    const now = { x: event.clientX, y: event.clientY };
    this.isDragged ||= Math.hypot(now.x - before.x, now.y - before.y) > 4;
    if (!this.isDragged) return undefined;
    this.canvas.classList.add("dragging");
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    this.pointers.set(event.pointerId, now);
    const share = other ? 0.5 : 1; // of two fingers, the middle
    const { stepX, stepY } = this.camera();
    this.pan((share * (before.x - now.x)) / stepX, (share * (before.y - now.y)) / stepY);
    if (other) {
      const apart = (point) => Math.max(8, Math.hypot(point.x - other.x, point.y - other.y));
      this.zoomAt(apart(now) / apart(before), (now.x + other.x) / 2, (now.y + other.y) / 2);
    }
    return this.onHover(this, null);
  }
}
