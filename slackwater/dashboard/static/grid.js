// The schedule, clients x slots, on one canvas of the visible size: a thousand clients draw as fast as ten.
import { el, css, colour, mixed, shortened, slotTime } from "./base.js";

const AXIS = 34;
const SMALLEST_SLOT = 3;

export class Grid {
  /** `tell(row, slot)` returns the lines that describe a cell: [title, ...]. */
  constructor(box, label, tell) {
    this.tell = tell;
    this.cell = null;
    this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "schedule", "aria-label": `${label}. Arrow keys move from cell to cell, Page Up and Page Down by a day, Home and End to the edges.` });
    this.inner = el("div", {}, this.canvas);
    this.scroll = el("div", { class: "grid-scroll" }, this.inner);
    this.tip = el("div", { class: "grid-tip", hidden: true });
    this.say = el("p", { class: "grid-say", "aria-live": "polite" }, "Point at a cell, or use the arrow keys, to see its emissions and why the client trains or not.");
    box.replaceChildren(this.scroll, this.tip, this.say);
    this.box = box;
    this.scroll.addEventListener("scroll", () => { this.soon(); this.viewed?.(); });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "touch") return; this.tip.hidden = true; if (document.activeElement !== this.canvas) { this.cell = null; this.soon(); } });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.layout()).observe(box);
  }

  /** data: {problem, rows: [client], labels, paint(row client, slot) -> colour number, colours, slots, window, skyline(client)} */
  show(data) {
    const same = this.data && this.data.rows.length === data.rows.length && this.data.slots === data.slots;
    this.data = data;
    this.image = null;
    if (same) this.draw(); else this.layout();
    if (this.cell && this.cell.byKey) this.describe();
  }

  layout() {
    if (!this.data || !this.box.clientWidth) return;
    const { rows, slots } = this.data, count = Math.max(rows.length, 1);
    const narrow = this.box.clientWidth < 600;
    this.height = count <= 8 ? 34 : count <= 20 ? 24 : count <= 80 ? 13 : count <= 250 ? 7 : 3;
    this.beside = !narrow && this.data.columns && this.height >= 12;
    this.gutter = (narrow ? 76 : 128) + (this.beside ? 150 : 0);
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
    if (this.range) this.scroll.scrollLeft = from * this.width;
    this.draw();
    this.viewed?.();
  }

  /** Show only these slots, or all with null. */
  zoom(range) {
    this.range = range;
    this.layout();
    if (!range) this.scroll.scrollLeft = 0;
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
    g.strokeRect(first * this.width, 1, Math.max((stop - first) * this.width, 1), rows.length * this.height - 2);
    if (this.cell) {
      g.strokeStyle = css("ink");
      g.lineWidth = 2;
      g.strokeRect(this.cell.slot * this.width - 1, this.cell.row * this.height - 1, this.width + 2, this.height + 2);
    }
    g.restore();
    this.axis(g, left, wide, first, stop);
    this.names(g, from, to, top, tall);
  }

  /** Draw intensity lines, each on its own scale, lines between rows, and strokes through slots in which a client cannot train. */
  details(g, from, to, left, wide) {
    const { rows, slots, skyline, cannot } = this.data;
    const low = Math.max(0, Math.floor(left / this.width)), high = Math.min(slots, Math.ceil((left + wide) / this.width));
    g.lineWidth = 1;
    g.strokeStyle = css("paper");
    g.beginPath();
    for (let y = from; y <= to; y++) { g.moveTo(0, y * this.height); g.lineTo(slots * this.width, y * this.height); }
    g.stroke();
    g.strokeStyle = css("skyline");
    g.globalAlpha = 0.75;
    g.beginPath();
    for (let y = from; y < to; y++) {
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
    g.strokeStyle = css("muted");
    g.beginPath();
    for (let y = from; y < to; y++) {
      for (let x = low; x < high; x++) {
        if (!cannot(rows[y], x)) continue;
        g.moveTo(x * this.width, (y + 1) * this.height - 1);
        g.lineTo((x + 1) * this.width, y * this.height + 1);
      }
    }
    g.stroke();
  }

  axis(g, left, wide, first, stop) {
    const { problem, slots } = this.data;
    g.fillStyle = css("muted");
    g.font = "12px system-ui, DejaVu Sans, sans-serif";
    g.textBaseline = "alphabetic";
    g.textAlign = "left";
    const length = problem.start ? problem.slot_minutes : 60;
    const steps = problem.start ? [60, 180, 360, 720, 1440, 2880, 5760, 10080, 20160, 40320].map((m) => Math.max(1, m / length)) : [1, 5, 10, 20, 50, 100, 200, 500, 1000];
    const step = steps.find((s) => s * this.width >= 62) ?? steps[steps.length - 1];
    const begin = problem.start ? new Date(problem.start) : null;
    const offset = begin ? (begin.getUTCHours() * 60 + begin.getUTCMinutes()) / length : 0;
    for (let at = Math.ceil(offset / step) * step - offset; at < slots; at += step) {
      const x = this.gutter - left + at * this.width;
      if (x < this.gutter - 1 || x > wide - 38) continue;
      g.fillRect(x, AXIS - 5, 1, 5);
      g.fillText(problem.start ? slotTime(problem, at, true) : String(at), x + 3, AXIS - 6);
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
    const { labels, groups, rows } = this.data, letters = Math.floor((this.gutter - (this.beside ? 150 : 0)) / 6.9);
    g.save();
    g.beginPath();
    g.rect(0, AXIS, this.gutter, tall - AXIS);
    g.clip();
    g.fillStyle = css("ink");
    g.textBaseline = "middle";
    g.textAlign = "right";
    g.font = `${this.height >= 12 ? 12 : 11}px system-ui, DejaVu Sans, sans-serif`;
    if (this.height >= 12) {
      for (let y = from; y < to; y++) {
        const at = AXIS - top + (y + 0.5) * this.height;
        g.fillText(shortened(labels[rows[y]], letters), this.gutter - 6 - (this.beside ? 150 : 0), at);
        if (this.beside) this.data.columns(rows[y]).forEach((text, i) => g.fillText(text, this.gutter - 102 + 48 * i, at));
      }
    } else { // rows too low for client names: show each zone's name where it begins
      let last = -99;
      for (let y = from; y < to; y++) {
        const at = AXIS - top + y * this.height;
        if (y && groups[rows[y]] === groups[rows[y - 1]] && y !== from) continue;
        if (at - last < 12) continue;
        last = at;
        g.fillText(shortened(groups[rows[y]], letters), this.gutter - 6, at + 6);
      }
    }
    g.restore();
    if (!this.beside) return;
    g.fillStyle = css("muted");
    g.textAlign = "right";
    g.font = "11px system-ui, DejaVu Sans, sans-serif";
    ["slots", "kg", "g/kWh"].forEach((name, i) => g.fillText(name, this.gutter - 102 + 48 * i, AXIS - 10));
    g.textAlign = "left";
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
    if (this.cell) this.describe(event);
    this.soon();
  }

  key(event) {
    if (!this.data || !this.data.rows.length) return;
    const day = Math.max(1, Math.round(1440 / this.data.problem.slot_minutes));
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [0, -day], PageDown: [0, day], Home: [0, -1e6], End: [0, 1e6] };
    if (event.key === "Escape") { this.tip.hidden = true; return; }
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
    this.draw();
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
    this.tip.style.top = `${y + 16 + tall > place.height + 30 ? Math.max(0, y - tall - 10) : y + 16}px`;
  }
}

const STEPS = 24;

/** Return the colours of the cells: shades of intensity, then special cells. */
export function gridColours() {
  const clean = colour("clean"), dirty = colour("dirty");
  const shades = Array.from({ length: STEPS }, (_, i) => mixed(clean, dirty, i / (STEPS - 1)));
  return { colours: [...shades, ...["trains", "cannot", "over", "pending", "missed", "window"].map(colour)], TRAINS: STEPS, CANNOT: STEPS + 1, OVER: STEPS + 2, PENDING: STEPS + 3, MISSED: STEPS + 4, EXTRA: STEPS + 5 };
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
