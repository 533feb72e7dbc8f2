// The schedule, clients x slots, on one canvas of the visible size: a thousand clients draw as fast as ten.
import { el, css, colour, mixed, shortened, slotTime } from "./base.js";
import { svg } from "./chart.js";

const AXIS = 34;
const SMALLEST_SLOT = 2;
const BESIDE = 150;
const STRIP = 44;
const FONT = "system-ui, DejaVu Sans, sans-serif";

/** Return the text, its middle cut until it is at most so many pixels wide. */
function fitted(g, text, room) {
  for (let letters = Math.ceil(room / 3); letters > 1; letters--) { const short = shortened(text, letters); if (g.measureText(short).width <= room) return short; }
  return "…";
}

/** What is drawn on a cell beside its colour: a dot is still to come, a cross was missed, a frame is extra, a broken frame was superseded, a stroke cannot. */
const MARKS = {
  pending: { line: 1, ink: "ink", dot: true, draw(g, x, y, w, h) { const size = Math.min(w, h) * 0.14 + 0.6; g.moveTo(x + w / 2 + size, y + h / 2); g.arc(x + w / 2, y + h / 2, size, 0, 7); } },
  missed: { line: 1.5, ink: "paper", draw(g, x, y, w, h) { g.moveTo(x + 1, y + 2); g.lineTo(x + w - 1, y + h - 2); g.moveTo(x + w - 1, y + 2); g.lineTo(x + 1, y + h - 2); } },
  extra: { line: 1.5, ink: "paper", draw(g, x, y, w, h) { const edge = Math.min(2, w / 4); g.rect(x + edge, y + 2.5, w - 2 * edge, h - 5); } },
  superseded: { line: 1.5, ink: "trains", dash: [3, 2], draw(g, x, y, w, h) { g.rect(x + 1, y + 1.5, w - 2, h - 3); } },
  cannot: { line: 1, ink: "muted", draw(g, x, y, w, h) { g.moveTo(x, y + h - 1); g.lineTo(x + w, y + 1); } },
};

/** Draws into the text of an SVG path as into a canvas. */
class Pen {
  constructor() { this.path = ""; }
  moveTo(x, y) { this.path += `M${x.toFixed(1)} ${y.toFixed(1)}`; }
  lineTo(x, y) { this.path += `L${x.toFixed(1)} ${y.toFixed(1)}`; }
  rect(x, y, w, h) { this.moveTo(x, y); this.path += `h${w.toFixed(1)}v${h.toFixed(1)}h${(-w).toFixed(1)}z`; }
  arc(x, y, r) { this.moveTo(x + r, y); this.path += `a${r} ${r} 0 1 0 ${-2 * r} 0a${r} ${r} 0 1 0 ${2 * r} 0z`; }
}

export class Grid {
  /** `tell(row, slot)` returns the lines that describe a cell: [title, ...]. */
  constructor(box, label, tell, hint = "Point at a cell, or use the arrow keys, to read what it is.") {
    Object.assign(this, { tell, hint });
    this.cell = null;
    this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "schedule", "aria-label": `${label}. Arrow keys move from cell to cell, Page Up and Page Down by a day, Home and End to the edges. Plus and minus zoom, 0 shows all hours, Enter opens a group.` });
    this.inner = el("div", {}, this.canvas);
    this.scroll = el("div", { class: "grid-scroll" }, this.inner);
    this.tip = el("div", { class: "grid-tip", hidden: true });
    this.say = el("p", { class: "grid-say", "aria-live": "polite" }, hint);
    this.strip = el("canvas", { class: "grid-strip", height: STRIP, hidden: true, title: "All hours: drag to zoom, click to move" });
    box.replaceChildren(this.scroll, this.strip, this.tip, this.say); // the style sheet puts the strip first
    this.box = box;
    for (const kind of ["down", "move", "up", "cancel"]) this.strip.addEventListener(`pointer${kind}`, (event) => this.brush(event, kind));
    document.addEventListener("pointerdown", (event) => { if (!this.tip.hidden && !box.contains(event.target)) this.tip.hidden = true; });
    this.scroll.addEventListener("scroll", () => { this.soon(); this.viewed?.(); });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => { this.point(event); const row = this.rowAt(event); if (row < 0) this.data.toggle?.(~row); });
    this.canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "touch") return; this.tip.hidden = true; if (document.activeElement !== this.canvas) { this.cell = null; this.soon(); } this.hovered?.(null); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.layout()).observe(box);
  }

  /**
   * data: {problem, rows, labels, colours, slots, window, paint(row) -> colour numbers by slot, cannot(row, slot), groups, and optionally
   * skyline(row), columns(row) -> [slots, kg, g/kWh], mark(row, slot) -> a key of MARKS, keys of a saved picture, grouped, group(g), toggle(g)}.
   * `largest` is where an end is marked on the time axis. A row is the number of a client, or ~g for group g, whose label is group(g).
   */
  show(data) {
    const same = this.data && this.data.rows.length === data.rows.length && this.data.slots === data.slots && !this.data.columns === !data.columns && this.data.problem === data.problem && this.data.grouped === data.grouped;
    if (!this.data?.rows.length !== !data.rows.length) this.say.textContent = data.rows.length ? this.hint : "No client matches.";
    this.data = data;
    this.image = null;
    if (same) this.draw(); else this.layout();
    if (this.cell && this.cell.byKey) this.describe();
  }

  layout() {
    if (!this.data || !this.box.clientWidth) return;
    const { rows, slots } = this.data, count = Math.max(rows.length, 1);
    const narrow = this.box.clientWidth < 600;
    this.height = count <= 8 ? 34 : count <= 20 ? 24 : count <= 80 || this.data.grouped ? 13 : count <= 250 ? 7 : 3;
    this.beside = !narrow && this.data.columns && this.height >= 12 ? BESIDE : 0;
    this.narrow = narrow;
    this.gutter = this.room() + this.beside;
    const most = Math.max(240, Math.min(innerHeight * 0.62, 720));
    const view = Math.min(AXIS + count * this.height + 2, most);
    this.scroll.style.height = `${view + 2}px`;
    const wide = this.scroll.clientWidth;
    const [from, to] = this.range && this.range[1] <= slots ? this.range : [0, slots];
    this.width = Math.max(SMALLEST_SLOT, (wide - this.gutter - 2) / Math.max(1, to - from));
    this.inner.style.width = `${this.gutter + this.width * slots}px`;
    this.inner.style.height = `${AXIS + count * this.height}px`;
    this.seen = [wide, this.scroll.clientHeight];
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.seen[0] * scale);
    this.canvas.height = Math.round(this.seen[1] * scale);
    this.canvas.style.width = `${this.seen[0]}px`;
    this.canvas.style.height = `${this.seen[1]}px`;
    this.strip.hidden = (slots <= 48 && !this.range) || !rows.length;
    this.strip.width = Math.round(wide * scale);
    this.strip.height = Math.round(STRIP * scale);
    if (this.range) this.scroll.scrollLeft = from * this.width;
    this.draw();
    this.viewed?.();
  }

  /** Return the width of the names: that of the longest, within limits. */
  room() {
    const [least, most] = this.narrow ? [76, 110] : [128, 200], g = this.canvas.getContext("2d");
    if (this.height < 12) return least;
    g.font = `600 12px ${FONT}`;
    const longest = this.data.rows.reduce((wide, row) => Math.max(wide, g.measureText(shortened(this.label(row), 40)).width), 0);
    return Math.round(Math.min(Math.max(longest + 14, least), most));
  }

  /** Show only these slots, or all with null. */
  zoom(range) {
    this.range = range;
    this.layout();
    if (!range) this.scroll.scrollLeft = 0;
    this.zoomed?.();
  }

  /** Zoom in (0.5) or out (2) around the cell or the middle. */
  zoomBy(factor) {
    const [from, to] = this.view(), { slots } = this.data, middle = this.cell ? this.cell.slot + 0.5 : (from + to) / 2, length = Math.max(4, Math.round((to - from) * factor));
    const start = Math.min(Math.max(Math.round(middle - length / 2), 0), Math.max(slots - length, 0));
    this.zoom(length >= slots ? null : [start, start + length]);
  }

  /** Draw all rows and slots in a strip, with a frame around what is visible. */
  overview() {
    if (this.strip.hidden || !this.image) return;
    const g = this.strip.getContext("2d"), scale = devicePixelRatio || 1, { rows, slots } = this.data, wide = this.seen[0] - this.gutter - 2, [from, to] = this.view();
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.fillStyle = css("paper");
    g.fillRect(0, 0, this.seen[0], STRIP);
    g.imageSmoothingEnabled = rows.length > STRIP;
    g.drawImage(this.image, 0, 0, slots, Math.max(rows.length, 1), this.gutter, 2, wide, STRIP - 4);
    const [x0, x1] = (this.brushed ?? [from, to]).map((slot) => this.gutter + slot / slots * wide), all = rows.length * this.height, top = this.scroll.scrollTop / all, seen = Math.min(1, (this.seen[1] - AXIS) / all);
    g.globalAlpha = 0.6;
    g.fillRect(this.gutter, 0, x0 - this.gutter, STRIP);
    g.fillRect(x1, 0, this.gutter + wide - x1, STRIP);
    g.globalAlpha = 1;
    g.strokeStyle = css("ink");
    g.lineWidth = 2;
    g.strokeRect(x0, 1 + (STRIP - 2) * top, Math.max(x1 - x0, 2), (STRIP - 2) * seen);
    g.fillStyle = css("muted");
    g.font = `11px ${FONT}`;
    g.textAlign = "right";
    g.fillText("all hours", this.gutter - 6, STRIP / 2 + 4);
  }

  /** Drag in the strip to zoom; click to move what is visible there. */
  brush(event, kind) {
    if (!this.data) return;
    const place = this.strip.getBoundingClientRect(), { slots } = this.data;
    const slot = Math.min(Math.max((event.clientX - place.left - this.gutter) / (place.width - this.gutter - 2) * slots, 0), slots);
    if (kind === "down") { this.from = slot; this.strip.setPointerCapture(event.pointerId); }
    if (this.from == null) return;
    const [low, high] = [Math.min(this.from, slot), Math.max(this.from, slot)], dragged = (high - low) / slots * place.width > 5;
    this.brushed = dragged && kind !== "cancel" ? [low, high] : null;
    if (kind === "up" || kind === "cancel") {
      this.from = this.brushed = null;
      if (kind === "up" && dragged) this.zoom([Math.floor(low), Math.ceil(high)]);
      else if (kind === "up") {
        this.scroll.scrollTop = (event.clientY - place.top) / place.height * this.data.rows.length * this.height - (this.seen[1] - AXIS) / 2;
        if (this.range) { const length = this.range[1] - this.range[0], start = Math.round(Math.min(Math.max(slot - length / 2, 0), slots - length)); this.zoom([start, start + length]); }
      }
    }
    this.overview();
  }

  /** Return the first and last visible slot. */
  view() {
    const from = this.scroll.scrollLeft / this.width;
    return [from, Math.min(this.data.slots, from + (this.seen[0] - this.gutter) / this.width)];
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  /** Paint one pixel per cell; the browser scales it up. */
  paint() {
    const { rows, slots, paint, colours } = this.data;
    const image = new OffscreenCanvas(slots, Math.max(rows.length, 1));
    const context = image.getContext("2d"), pixels = context.createImageData(slots, Math.max(rows.length, 1));
    const packed = colours.map(([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r);
    const out = new Uint32Array(pixels.data.buffer);
    for (let at = 0, y = 0; y < rows.length; y++) {
      const line = paint(rows[y]);
      for (let x = 0; x < slots; x++) out[at++] = packed[line[x]];
    }
    context.putImageData(pixels, 0, 0);
    return image;
  }

  draw() {
    if (!this.data || !this.seen) return;
    this.image ??= this.paint();
    const { rows, slots, window: [first, stop] } = this.data, g = this.canvas.getContext("2d");
    const scale = devicePixelRatio || 1, [wide, tall] = this.seen;
    const left = this.scroll.scrollLeft, top = this.scroll.scrollTop;
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.fillStyle = css("paper");
    g.fillRect(0, 0, wide, tall);
    g.save();
    g.beginPath();
    g.rect(this.gutter, AXIS, wide - this.gutter, tall - AXIS);
    g.clip();
    g.translate(this.gutter - left, AXIS - top);
    g.imageSmoothingEnabled = false;
    if (rows.length) g.drawImage(this.image, 0, 0, slots, rows.length, 0, 0, slots * this.width, rows.length * this.height);
    const from = Math.max(0, Math.floor(top / this.height)), to = Math.min(rows.length, Math.ceil((top + tall) / this.height));
    if (this.height >= 12) this.details(g, from, to, left, wide);
    g.strokeStyle = css("window");
    g.lineWidth = 2;
    if (stop > first && rows.length) g.strokeRect(first * this.width, 1, (stop - first) * this.width, rows.length * this.height - 2);
    if (this.cell) {
      g.strokeStyle = css("ink");
      g.lineWidth = 2;
      g.strokeRect(this.cell.slot * this.width - 1, this.cell.row * this.height - 1, this.width + 2, this.height + 2);
    }
    if (this.cursor != null) {
      g.strokeStyle = css("ink");
      g.lineWidth = 1;
      g.setLineDash([4, 3]);
      g.strokeRect(this.cursor * this.width, -1, this.width, rows.length * this.height + 2);
      g.setLineDash([]);
    }
    g.restore();
    this.axis(g, left, wide, first, stop);
    this.names(g, from, to, top, tall);
    this.overview();
  }

  /** Point at a slot, as a chart or the map on the same time axis does. */
  pointAt(slot) {
    if (this.cursor === slot) return;
    this.cursor = slot;
    this.soon();
  }

  /** Draw intensity lines, each on its own scale, lines between rows, and strokes through slots in which a client cannot train. */
  details(g, from, to, left, wide) {
    const { rows, slots, skyline } = this.data;
    const low = Math.max(0, Math.floor(left / this.width)), high = Math.min(slots, Math.ceil((left + wide) / this.width));
    g.lineWidth = 1;
    g.strokeStyle = css("paper");
    g.beginPath();
    for (let y = from; y <= to; y++) { g.moveTo(0, y * this.height); g.lineTo(slots * this.width, y * this.height); }
    g.stroke();
    g.strokeStyle = css("skyline");
    g.globalAlpha = 0.75;
    g.beginPath();
    for (let y = from; y < to && skyline; y++) {
      const line = skyline(rows[y]);
      const foot = (y + 1) * this.height - 2, rise = this.height - 4;
      for (let x = low; x < high; x++) {
        const at = foot - line[x] * rise;
        if (x === low) g.moveTo(x * this.width, at); else g.lineTo(x * this.width, at);
        g.lineTo((x + 1) * this.width, at);
      }
    }
    g.stroke();
    g.globalAlpha = 1;
    this.marks(g, from, to, low, high);
  }

  /** Return the key of MARKS for a cell. */
  markOf(row, slot) { return this.data.mark?.(row, slot) ?? (this.data.cannot(row, slot) ? "cannot" : null); }

  /** Tell states apart by shape, see MARKS. */
  marks(g, from, to, low, high) {
    const { rows } = this.data, w = this.width, h = this.height, places = Object.fromEntries(Object.keys(MARKS).map((kind) => [kind, []]));
    for (let y = from; y < to; y++) for (let x = low; x < high; x++) places[this.markOf(rows[y], x)]?.push([x * w, y * h]);
    for (const [kind, { line, ink, dash = [], dot, draw }] of Object.entries(MARKS)) {
      g.lineWidth = line;
      g.strokeStyle = g.fillStyle = css(ink);
      g.setLineDash(dash);
      g.beginPath();
      for (const [x, y] of places[kind]) draw(g, x, y, w, h);
      g.stroke();
      if (dot) g.fill();
    }
    g.setLineDash([]);
  }

  /** Return the slots that the time axis names: full hours and days, as close as their labels allow. */
  ticks(width = this.width) {
    const { problem, slots } = this.data, length = problem.start ? problem.slot_minutes : 60;
    const steps = problem.start ? [5, 15, 30, 60, 180, 360, 720, 1440, 2880, 5760, 10080, 20160, 40320].map((m) => Math.max(1, m / length)).filter(Number.isInteger) : [1, 5, 10, 20, 50, 100, 200, 500, 1000];
    const step = steps.find((s) => s * width >= 62) ?? steps[steps.length - 1], begin = problem.start ? new Date(problem.start) : null;
    const offset = begin ? (begin.getUTCHours() * 60 + begin.getUTCMinutes()) / length : 0, found = [];
    for (let at = Math.ceil(offset / step) * step - offset; at < slots; at += step) found.push(at);
    return found;
  }

  axis(g, left, wide, first, stop) {
    const { problem } = this.data;
    g.fillStyle = css("muted");
    g.font = `12px ${FONT}`;
    g.textBaseline = "alphabetic";
    g.textAlign = "left";
    for (const at of this.ticks()) {
      const x = this.gutter - left + at * this.width;
      if (x < this.gutter - 1 || x > wide - 38) continue;
      g.fillRect(x, AXIS - 5, 1, 5);
      g.fillText(problem.start ? slotTime(problem, at, true) : String(at), x + 3, AXIS - 6);
    }
    if (this.data.largest != null) {
      const at = this.gutter - left + this.data.largest * this.width, x = Math.min(at, wide - 7);
      g.fillStyle = css("ink");
      g.beginPath();
      g.moveTo(x - 5, AXIS - 8);
      g.lineTo(x + 5, AXIS - 8);
      g.lineTo(x, AXIS);
      if (at >= this.gutter && at <= wide + 1) g.fill();
    }
    if (stop > first) {
      const x = this.gutter - left + (first + stop) / 2 * this.width;
      if (x > this.gutter && x < wide) {
        g.fillStyle = css("window");
        g.textAlign = x > wide - 60 ? "right" : x < this.gutter + 60 ? "left" : "center";
        g.fillText("fine-tuning", Math.min(x, wide - 2), 13);
        g.textAlign = "left";
      }
    }
  }

  names(g, from, to, top, tall) {
    const { groups, rows } = this.data, room = this.gutter - this.beside - 10;
    g.save();
    g.beginPath();
    g.rect(0, AXIS, this.gutter, tall - AXIS);
    g.clip();
    g.fillStyle = css("ink");
    g.textBaseline = "middle";
    g.textAlign = "right";
    g.font = `11px ${FONT}`;
    if (this.height >= 12) {
      for (let y = from; y < to; y++) {
        const at = AXIS - top + (y + 0.5) * this.height;
        g.font = `${rows[y] < 0 ? "600 " : ""}12px ${FONT}`;
        g.fillText(fitted(g, this.label(rows[y]), room), this.gutter - 6 - this.beside, at);
        if (this.beside) this.data.columns(rows[y]).forEach((text, i) => g.fillText(text, this.gutter - 102 + 48 * i, at));
      }
    } else { // rows too low for client names: show each zone's name where it begins
      let last = -99;
      for (let y = from; y < to; y++) {
        const at = AXIS - top + y * this.height;
        if (y && groups[rows[y]] === groups[rows[y - 1]] && y !== from) continue;
        if (at - last < 12) continue;
        last = at;
        g.fillText(fitted(g, groups[rows[y]], room), this.gutter - 6, at + 6);
      }
    }
    g.restore();
    if (!this.beside) return;
    g.fillStyle = css("muted");
    g.textAlign = "right";
    g.font = `11px ${FONT}`;
    ["slots", "kg", "g/kWh"].forEach((name, i) => g.fillText(name, this.gutter - 102 + 48 * i, AXIS - 10));
    g.textAlign = "left";
  }

  label(row) { return row < 0 ? this.data.group(~row, this.narrow) : this.data.labels[row]; }

  /** Return the row at whose name, left of the cells, the pointer is. */
  rowAt(event) {
    const place = this.canvas.getBoundingClientRect(), y = event.clientY - place.top - AXIS + this.scroll.scrollTop;
    return this.data && event.clientX - place.left < this.gutter && event.clientY - place.top > AXIS ? this.data.rows[Math.floor(y / this.height)] : null;
  }

  at(event) {
    const place = this.canvas.getBoundingClientRect();
    const x = event.clientX - place.left - this.gutter + this.scroll.scrollLeft, y = event.clientY - place.top - AXIS + this.scroll.scrollTop;
    if (event.clientX - place.left < this.gutter || event.clientY - place.top < AXIS) return null;
    const cell = { row: Math.floor(y / this.height), slot: Math.floor(x / this.width) };
    return cell.row < this.data.rows.length && cell.slot < this.data.slots ? cell : null;
  }

  point(event) {
    if (!this.data) return;
    this.cell = this.at(event);
    this.tip.hidden = !this.cell;
    this.canvas.style.cursor = this.rowAt(event) < 0 ? "pointer" : "";
    if (this.cell) this.describe(event);
    this.hovered?.(this.cell?.slot ?? null);
    this.soon();
  }

  key(event) {
    if (!this.data || !this.data.rows.length) return;
    const day = Math.max(1, Math.round(1440 / this.data.problem.slot_minutes));
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [0, -day], PageDown: [0, day], Home: [0, -1e6], End: [0, 1e6] };
    if (event.key === "Escape") { this.tip.hidden = true; return; }
    if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    if (event.key === "-") this.zoomBy(2);
    if (event.key === "0") this.zoom(null);
    if (event.key === "Enter" && this.cell && this.data.rows[this.cell.row] < 0) this.data.toggle?.(~this.data.rows[this.cell.row]);
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const { row, slot } = this.cell ?? { row: -move[0], slot: -move[1] }; // the first key press only enters the grid
    const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
    this.cell = { row: within(row + move[0], this.data.rows.length), slot: within(slot + move[1], this.data.slots), byKey: true };
    const x = this.cell.slot * this.width, y = this.cell.row * this.height;
    const [wide, tall] = this.seen;
    if (x < this.scroll.scrollLeft) this.scroll.scrollLeft = x;
    if (x + this.width > this.scroll.scrollLeft + wide - this.gutter) this.scroll.scrollLeft = x + this.width - wide + this.gutter;
    if (y < this.scroll.scrollTop) this.scroll.scrollTop = y;
    if (y + this.height > this.scroll.scrollTop + tall - AXIS) this.scroll.scrollTop = y + this.height - tall + AXIS;
    this.describe();
    this.hovered?.(this.cell.slot);
    this.draw();
  }

  /** Return the whole schedule as SVG: a path for each colour. */
  picture() {
    const { rows, slots, paint, colours, problem, window: [first, stop] } = this.data, w = Math.max(3, Math.min(48, 1000 / slots)), h = rows.length > 80 ? 4 : 13, left = 150, top = 24, named = h > 10;
    const paths = colours.map(() => []), wide = left + slots * w + 140, tall = top + rows.length * h + (this.data.keys ? 28 : 10), root = svg("svg", { viewBox: `0 0 ${wide} ${tall}` });
    rows.forEach((row, y) => {
      const line = Uint8Array.from(paint(row));
      for (let x = 0, from = 0; x < slots; x++) if (x + 1 === slots || line[x + 1] !== line[from]) { paths[line[from]].push(`M${(left + from * w).toFixed(1)} ${top + y * h}h${((x + 1 - from) * w).toFixed(1)}v${h - (named ? 1 : 0)}H${(left + from * w).toFixed(1)}z`); from = x + 1; }
    });
    paths.forEach((path, i) => { if (path.length) root.append(svg("path", { d: path.join(""), fill: `rgb(${colours[i].join(" ")})`, stroke: "none" })); });
    if (named) {
      const pens = Object.fromEntries(Object.keys(MARKS).map((kind) => [kind, new Pen()]));
      rows.forEach((row, y) => { for (let x = 0; x < slots; x++) { const kind = this.markOf(row, x); if (kind) MARKS[kind].draw(pens[kind], left + x * w, top + y * h, w, h - 1); } });
      for (const [kind, { path }] of Object.entries(pens)) if (path) root.append(svg("path", { d: path, fill: MARKS[kind].dot ? css("ink") : "none", stroke: css(MARKS[kind].ink), "stroke-width": MARKS[kind].line, "stroke-dasharray": (MARKS[kind].dash ?? []).join(" ") || "none" }));
    }
    if (stop > first) root.append(svg("rect", { x: left + first * w, y: top, width: (stop - first) * w, height: rows.length * h, fill: "none", stroke: css("window"), "stroke-width": 2 }));
    const text = (x, y, anchor, words) => { const made = svg("text", { x, y, "text-anchor": anchor }); made.textContent = words; root.append(made); };
    if (named) rows.forEach((row, y) => { text(left - 6, top + y * h + 10, "end", shortened(this.label(row), 20)); if (this.data.columns) text(left + slots * w + 6, top + y * h + 10, "start", this.data.columns(row).slice(0, 2).join(" slots, ") + " kg"); });
    for (const at of this.ticks(w)) text(left + at * w, 16, "start", slotTime(problem, at, true));
    let x = 6;
    for (const [ink, words, kind] of this.data.keys ?? []) {
      const frame = ink === "window", box = { x, y: tall - 16, width: 12, height: 12 };
      root.append(svg("rect", { ...box, fill: frame ? "none" : `rgb(${colours[ink].join(" ")})`, stroke: css(frame ? "window" : "rule"), "stroke-width": frame ? 2 : 1 }));
      if (kind) { const pen = new Pen(); MARKS[kind].draw(pen, x, tall - 16, 12, 12); root.append(svg("path", { d: pen.path, fill: MARKS[kind].dot ? css("ink") : "none", stroke: css(MARKS[kind].ink), "stroke-dasharray": (MARKS[kind].dash ?? []).join(" ") || "none" })); }
      text(x + 17, tall - 6, "start", words);
      x += 34 + 6.4 * words.length;
    }
    return root;
  }

  describe(event = null) {
    const [title, ...lines] = this.tell(this.data.rows[this.cell.row], this.cell.slot);
    this.say.textContent = [title, ...lines].join(" · ");
    this.tip.replaceChildren(el("strong", {}, title), ...lines.map((line) => el("span", {}, line, el("br"))));
    this.tip.hidden = false;
    const place = this.scroll.getBoundingClientRect();
    const x = event ? event.clientX - place.left : this.gutter - this.scroll.scrollLeft + this.cell.slot * this.width;
    const y = event ? event.clientY - place.top : AXIS - this.scroll.scrollTop + this.cell.row * this.height;
    const wide = this.tip.offsetWidth, tall = this.tip.offsetHeight;
    this.tip.style.left = `${Math.max(0, x + 16 + wide > place.width ? x - wide - 12 : x + 16)}px`;
    this.tip.style.top = `${this.scroll.offsetTop + (y + 16 + tall > place.height + 30 ? Math.max(0, y - tall - 10) : y + 16)}px`;
  }
}

const STEPS = 24;
const PARTS = 8;

/** Return the colours of the cells: shades of intensity, special cells, and shares of a group that trains. */
export function gridColours() {
  const clean = colour("clean"), dirty = colour("dirty"), trains = colour("trains");
  const shades = Array.from({ length: STEPS }, (_, i) => mixed(clean, dirty, i / (STEPS - 1))), partly = Array.from({ length: PARTS }, (_, i) => mixed(colour("pending"), trains, i / (PARTS - 1)));
  const special = ["trains", "cannot", "over", "pending", "missed", "window"].map(colour);
  return { colours: [...shades, ...special, mixed(clean, trains, 0.3), ...partly], TRAINS: STEPS, CANNOT: STEPS + 1, OVER: STEPS + 2, PENDING: STEPS + 3, MISSED: STEPS + 4, EXTRA: STEPS + 5, SUPERSEDED: STEPS + 6, PARTLY: STEPS + 7, PARTS };
}

/** Return for each zone its shades, on a scale common to all zones, and its intensity line, on its own scale. */
export function gridShades(problem) {
  let low = Infinity, high = -Infinity;
  for (const line of problem.intensity_g_per_kwh) for (const value of line) { if (value < low) low = value; if (value > high) high = value; }
  const span = high - low || 1;
  return problem.intensity_g_per_kwh.map((line) => {
    const own = Math.min(...line), range = Math.max(...line) - own || 1;
    return { shade: Uint8Array.from(line, (value) => Math.round((value - low) / span * (STEPS - 1))), skyline: Float32Array.from(line, (value) => (value - own) / range) };
  });
}
