// Intensity, power and kg by hour, below the schedule: one time axis, cursor and zoom for all.
import { css, el, onTheme, slotTime } from "./base.js";
import uPlot from "./vendor/uplot.js";

const REST_MS = 60;
const HEIGHT = 120;

export class HourCharts {
  constructor(box, grid, noted) {
    Object.assign(this, { box, grid, noted, charts: [] });
    grid.viewed = () => this.follow();
    onTheme(() => this.draw());
    new ResizeObserver(() => { if (box.clientWidth !== this.wide) this.draw(); }).observe(box);
  }

  /** Draw when the schedule rests: a moving slider does not wait for charts. */
  soon(problem, bits, slots) {
    Object.assign(this, { problem, bits, slots });
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.draw(), REST_MS);
  }

  reset() { this.grid.range = null; }

  zoom(range) {
    this.grid.zoom(range);
    this.follow();
    this.noted();
  }

  follow() {
    if (!this.grid.seen || this.following) return;
    this.following = true;
    const [min, max] = this.grid.view();
    for (const chart of this.charts) chart.setScale("x", { min, max });
    this.following = false;
  }

  /** Return sums over clients by slot: mean intensity of all and of those who train, kW, kg. */
  sums() {
    const { problem, bits, slots } = this, { clients, intensity_g_per_kwh: grams } = problem, count = clients.name.length;
    const all = new Float64Array(slots), busy = new Float64Array(slots), power = new Float64Array(slots), kg = new Float64Array(slots), active = new Float64Array(slots);
    for (let c = 0; c < count; c++) {
      const line = grams[clients.zone[c]], kwh = clients.energy_kwh[c];
      for (let slot = 0; slot < slots; slot++) {
        all[slot] += line[slot] / count;
        if (!bits?.has(c, slot)) continue;
        busy[slot] += line[slot];
        active[slot]++;
        power[slot] += kwh * 60 / problem.slot_minutes;
        kg[slot] += kwh * line[slot] / 1000;
      }
    }
    return { all: [...all], busy: [...busy].map((sum, slot) => (active[slot] ? sum / active[slot] : null)), power: [...power], kg: [...kg] };
  }

  draw() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
    this.wide = this.box.clientWidth;
    if (!this.problem || !this.wide || !this.grid.seen) return;
    const { all, busy, power, kg } = this.sums(), slots = Array.from({ length: this.slots }, (_, slot) => slot);
    const kinds = [
      ["Intensity, g/kWh", [["all clients", all, "muted"], ["those who train", busy, "series-1"]]],
      ["Power, kW", [["training", power, "series-0"]]],
      ["kg CO2e by slot", [["training", kg, "trains"]]],
    ];
    this.box.replaceChildren();
    for (const [title, lines] of kinds) {
      const holder = el("div", { class: "hour-chart", role: "img", "aria-label": `${title} by hour` });
      this.box.append(el("h2", {}, title), holder);
      this.charts.push(new uPlot(this.options(lines), [slots, ...lines.map(([, values]) => values)], holder));
    }
    this.follow();
  }

  options(lines) {
    const axis = { stroke: css("muted"), grid: { stroke: css("rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui, DejaVu Sans, sans-serif" };
    return {
      width: this.wide, height: HEIGHT, padding: [6, 2, 0, 0],
      cursor: { sync: { key: "hours" }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => this.zoom(null) } },
      select: { show: true },
      scales: { x: { time: false, auto: false, range: (_, min, max) => [min ?? 0, max ?? this.slots] }, y: { range: (_, min, max) => [0, (max || 1) * 1.05] } },
      axes: [{ ...axis, size: 22, values: (_, at) => at.map((slot) => (Number.isInteger(slot) && slot <= this.slots ? slotTime(this.problem, slot, true) : "")) }, { ...axis, size: this.grid.gutter }],
      series: [{ label: "Time", value: (_, slot) => (slot == null ? "–" : slotTime(this.problem, slot)) },
        ...lines.map(([label, , name]) => ({ label, stroke: css(name), width: 1.6, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, value: (_, v) => (v == null ? "–" : String(Number(v.toPrecision(3)))) }))],
      hooks: { setSelect: [(chart) => this.selected(chart)] },
    };
  }

  selected(chart) {
    const { left, width } = chart.select;
    if (width < 4) return;
    const from = Math.max(0, Math.floor(chart.posToVal(left, "x"))), to = Math.min(this.slots, Math.ceil(chart.posToVal(left + width, "x")));
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (to > from) this.zoom([from, to]);
  }
}
