// Intensity, power and kg by hour, below the schedule: one time axis, cursor and zoom for all.
import { css, el, onTheme, slotIso, slotTime } from "./base.js";
import { lineChart } from "./chart.js";
import { pressable } from "./curves.js";
import { stacked } from "./export.js";
import uPlot from "./vendor/uplot.js";

const REST_MS = 150;
const HEIGHT = 120;
/** A step for each slot, from its begin to its end; uPlot's own leave out the last slot and slots between gaps. */
function steps(chart, series, first, last) {
  const stroke = new Path2D(), [slots, values] = [chart.data[0], chart.data[series]], x = (slot) => chart.valToPos(slot, "x", true);
  let on = false;
  for (let at = Math.max(0, first - 1); at <= Math.min(slots.length - 1, last + 1); at++) {
    const known = values[at] != null;
    if (known) {
      const y = chart.valToPos(values[at], "y", true);
      stroke[on ? "lineTo" : "moveTo"](x(at), y);
      stroke.lineTo(x(at + 1), y);
    }
    on = known;
  }
  return { stroke, fill: null, clip: null, band: null, gaps: null, flags: 1 };
}
const KINDS = { muted: "quiet", "series-0": "c0", "series-1": "c1", trains: "c2" };

export class HourCharts {
  constructor(box, grid, noted, pointed = () => {}) {
    Object.assign(this, { box, grid, noted, pointed, charts: [], off: new Set() });
    grid.viewed = () => this.follow();
    grid.zoomed = () => { this.follow(); this.noted(); };
    grid.hovered = (slot) => { this.pointAt(slot); if (slot != null) this.pointed(slot); };
    onTheme(() => { this.made = null; this.draw(); });
    new ResizeObserver(() => { if (box.clientWidth !== this.wide) this.draw(); }).observe(box);
  }

  /** Draw when the schedule rests: a moving slider does not wait for charts. `plan` has power and kg of everything, server and idle draw included. */
  soon(problem, bits, slots, plan = null) {
    Object.assign(this, { problem, bits, slots, plan });
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.draw(), REST_MS);
  }

  reset() { this.grid.range = null; }

  zoom(range) { this.grid.zoom(range); }

  follow() {
    if (!this.grid.seen || this.following) return;
    this.following = true;
    const [min, max] = this.grid.view();
    for (const chart of this.charts) chart.setScale("x", { min, max });
    this.following = false;
  }

  /** Move the cursor of all charts to the middle of a slot. */
  pointAt(slot) {
    this.moving = true;
    for (const chart of this.charts) chart.setCursor(slot == null ? { left: -10, top: -10 } : { left: chart.valToPos(slot + 0.5, "x"), top: HEIGHT / 3 });
    this.moving = false;
  }

  /** Return by slot the mean intensity of all clients and of those that train, kW, and kg. */
  sums() {
    const { problem, bits, slots, plan } = this, { clients, intensity_g_per_kwh: grams } = problem, count = clients.name.length;
    const all = new Float64Array(slots), busy = new Float64Array(slots), power = new Float64Array(slots), kg = new Float64Array(slots), active = new Float64Array(slots);
    const times = new Map();
    for (const zone of clients.zone) times.set(zone, (times.get(zone) ?? 0) + 1);
    for (const [zone, many] of times) for (let slot = 0; slot < slots; slot++) all[slot] += grams[zone][slot] * many / count;
    for (let c = 0; bits && c < count; c++) {
      const line = grams[clients.zone[c]], kwh = clients.energy_kwh[c];
      for (let slot = 0; slot < slots; slot++) {
        if (!bits.has(c, slot)) continue;
        busy[slot] += line[slot];
        active[slot]++;
        power[slot] += kwh * 60 / problem.slot_minutes;
        kg[slot] += kwh * line[slot] / 1000;
      }
    }
    const told = (values, own, factor) => (values ? Array.from({ length: slots }, (_, slot) => (values[slot] ?? 0) * factor) : [...own]);
    return { all: [...all], busy: [...busy].map((sum, slot) => (active[slot] ? sum / active[slot] : null)), power: told(plan?.power_w_by_slot, power, 0.001), kg: told(plan?.kg_by_slot, kg, 1) };
  }

  /** Return the charts: title, and lines of name, values and colour. */
  kinds() {
    const { all, busy, power, kg } = this.sums();
    return [
      ["Intensity, g/kWh", [["all clients", all, "muted"], ["those who train", busy, "series-1"]]],
      ["Power, kW", [["training", power, "series-0"]]],
      ["kg CO2e by slot", [["the run", kg, "trains"]]],
    ];
  }

  draw() {
    const wide = this.box.clientWidth;
    if (!this.problem || !wide || !this.grid.seen) return;
    const kinds = this.kinds(), slots = Array.from({ length: this.slots }, (_, slot) => slot), made = `${wide} ${this.slots} ${this.grid.gutter} ${this.problem.source} ${[...this.off]}`;
    if (made === this.made) {
      this.charts.forEach((chart, i) => chart.setData([slots, ...kinds[i][1].map(([, values]) => values)]));
      this.follow();
      return;
    }
    this.made = made;
    this.wide = wide;
    for (const chart of this.charts) chart.destroy();
    this.box.replaceChildren();
    this.charts = kinds.map(([title, lines], at) => {
      const holder = el("div", { class: "hour-chart", role: "img", "aria-label": `${title} by hour` });
      this.box.append(el("h2", {}, title), holder);
      return pressable(new uPlot(this.options(lines, at), [slots, ...lines.map(([, values]) => values)], holder));
    });
    this.follow();
  }

  options(lines, at) {
    const axis = { stroke: css("muted"), grid: { stroke: css("rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui, DejaVu Sans, sans-serif" };
    return {
      width: this.wide, height: HEIGHT, padding: [6, 2, 0, 0],
      cursor: { sync: { key: "hours" }, y: false, dataIdx: (_, series, nearest, slot) => Math.min(Math.max(Math.floor(slot), 0), this.slots - 1), drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => this.zoom(null) } },
      select: { show: true },
      scales: { x: { time: false, auto: false, range: (_, min, max) => [min ?? 0, max ?? this.slots] }, y: { range: (_, min, max) => [0, (max || 1) * 1.05] } },
      axes: [{ ...axis, size: 22, splits: (_, axis, low, high) => this.grid.ticks().filter((slot) => slot >= low && slot <= high), values: (_, ticks) => ticks.map((slot) => slotTime(this.problem, slot, true)) }, { ...axis, size: this.grid.gutter }],
      series: [{ label: "Time", value: (_, slot) => (slot == null ? "–" : slotTime(this.problem, slot)) },
        ...lines.map(([label, , name], i) => ({ label, show: !this.off.has(`${at}.${i + 1}`), stroke: css(name), width: 1.6, paths: steps, points: { show: false }, value: (_, v) => (v == null ? "–" : String(Number(v.toPrecision(3)))) }))],
      hooks: { setSelect: [(chart) => this.selected(chart)], setSeries: [(_, series, now) => this.toggled(at, series, now)], setCursor: [(chart) => this.hover(chart)] },
    };
  }

  hover(chart) {
    if (this.moving || !this.charts.includes(chart)) return;
    const slot = chart.cursor.left >= 0 ? Math.floor(chart.posToVal(chart.cursor.left, "x")) : null;
    this.grid.pointAt(slot != null && slot < this.slots ? slot : null);
    if (slot != null) this.pointed(slot);
  }

  /** Remember which lines the legend has switched off. */
  toggled(chart, series, { show }) {
    if (show == null || series == null) return;
    this.off[show ? "delete" : "add"](`${chart}.${series}`);
    this.made = this.made?.replace(/\S*$/, [...this.off].join());
    this.noted();
  }

  selected(chart) {
    const { left, width } = chart.select;
    if (width < 4) return;
    const from = Math.max(0, Math.floor(chart.posToVal(left, "x"))), to = Math.min(this.slots, Math.ceil(chart.posToVal(left + width, "x")));
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (to > from) this.zoom([from, to]);
  }

  /** Return the charts as one picture. */
  picture() {
    return stacked(this.kinds().map(([title, lines]) => {
      const box = el("div"), steps = (values) => values.flatMap((value, slot) => [[slot, value ?? NaN], [slot + 1, value ?? NaN]]);
      lineChart(box, { series: lines.map(([name, values, ink]) => ({ name, points: steps(values), kind: KINDS[ink] })), x: "", y: title, zero: true, height: 180, wide: 1000, xTicks: (pixels) => this.grid.ticks(pixels), xFormat: (slot) => slotTime(this.problem, slot, true) });
      return box.firstChild;
    }));
  }

  rows() {
    const kinds = this.kinds(), lines = kinds.flatMap(([title, own]) => own.map(([name, values]) => [`${title}, ${name}`, values]));
    return [["time", ...lines.map(([name]) => name)], ...Array.from({ length: this.slots }, (_, slot) => [slotIso(this.problem, slot), ...lines.map(([, values]) => (values[slot] == null ? "" : Number(values[slot].toPrecision(6))))])];
  }
}
