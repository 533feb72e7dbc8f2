// A chart that grows as a run goes on, with uPlot: crosshair, zoom, and a legend that hides lines.
import { css, el, onTheme } from "./base.js";
import { lineChart } from "./chart.js";
import uPlot from "./vendor/uplot.js";

const HEIGHT = 250, LEAST_DRAG = 4, LETTER = 6.8;
const ink = (kind) => css(kind === "quiet" ? "muted" : `series-${kind.slice(1)}`);

/** Return the index nearest to `at` that has a value, between the first and the last that have one. */
function known(values, at) {
  let before = at, after = at;
  while (before >= 0 && values[before] == null) before--;
  while (after < values.length && values[after] == null) after++;
  return before < 0 || after === values.length ? at : at - before <= after - at ? before : after;
}

/** Let the keyboard use the legend too, and return the chart. */
export function pressable(chart) {
  chart.root.querySelectorAll(".u-legend .u-series").forEach((row, at) => {
    const name = row.querySelector("th"), say = () => name.setAttribute("aria-pressed", String(chart.series[at].show));
    if (!at) return; // the x axis
    name.tabIndex = 0;
    name.setAttribute("role", "button");
    name.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); name.click(); } });
    name.addEventListener("click", say);
    say();
  });
  return chart;
}

/** Draw a ring around a point. */
function ring(chart, [x, y]) {
  const { ctx: g } = chart;
  g.beginPath();
  g.arc(chart.valToPos(x, "x", true), chart.valToPos(y, "y", true), 6 * devicePixelRatio, 0, 7);
  Object.assign(g, { fillStyle: css("paper"), strokeStyle: css("ink"), lineWidth: 2.5 * devicePixelRatio });
  g.fill();
  g.stroke();
}

export class Curves {
  constructor(box) {
    Object.assign(this, { box, off: new Set(), span: null, chart: null, made: "" });
    addEventListener("resize", () => this.draw());
    onTheme(() => { this.made = ""; this.draw(); });
  }

  /** Draw what `lineChart` takes; zoom and hidden lines stay as long as the x axis means the same. */
  show(data) {
    if (data.x !== this.data?.x) this.span = null;
    this.data = data;
    this.box.setAttribute("role", "group");
    this.box.setAttribute("aria-label", `${data.y} against ${data.x}: ${data.series.map((one) => one.name).join(", ")}`);
    this.draw();
  }

  /** Return all of it as one picture. */
  picture() {
    if (!this.data) return null;
    const box = el("div");
    lineChart(box, this.data);
    return box.firstChild;
  }

  draw() {
    const wide = this.box.clientWidth, { data } = this;
    if (!data || !wide) return;
    const series = data.series.map((one) => [...one.points].sort((a, b) => a[0] - b[0])), some = series.some((points) => points.length);
    const values = some ? uPlot.join(series.map((points) => [points.map(([x]) => x), points.map(([, y]) => y)])) : null;
    const made = some ? JSON.stringify([wide, data.x, data.y, data.series.map(({ name, kind, dots }) => [name, kind, dots])]) : "";
    if (!some) { this.chart?.destroy(); this.chart = null; this.box.textContent = "Nothing to draw yet."; }
    else if (made !== this.made) {
      this.chart?.destroy();
      this.box.replaceChildren();
      this.chart = pressable(new uPlot(this.options(wide), values, this.box));
    } else this.chart.setData(values, false);
    this.made = made;
    if (some) this.zoom(this.span);
  }

  /** Show a part of the x axis; all of it without one. */
  zoom(span) {
    const { data: [xs] } = this.chart, [low, high] = this.data.xSpan ?? [this.data.zero ? 0 : xs[0], xs.at(-1)], pad = high > low ? 0 : Math.abs(low) * 0.05 || 0.5;
    this.span = span;
    this.chart.setScale("x", span ? { min: span[0], max: span[1] } : { min: low - pad, max: high + pad });
  }

  options(wide) {
    const { x, y, zero, series, xTicks, xFormat, xTell = xFormat, yFormat } = this.data, short = (v) => String(Number(v.toPrecision(4))), named = yFormat ?? short;
    const axis = { stroke: css("muted"), grid: { stroke: css("rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui, DejaVu Sans, sans-serif", labelFont: "12px system-ui, DejaVu Sans, sans-serif", labelSize: 20 };
    const ranged = (_, low, high) => { const from = zero ? Math.min(0, low ?? 0) : low ?? 0, to = high ?? 1, pad = (to - from) * 0.06 || Math.abs(to) * 0.05 || 0.5; return [zero && from === 0 ? 0 : from - pad, to + pad]; };
    return {
      width: wide, height: HEIGHT, padding: [8, 18, 0, 0],
      cursor: { y: false, dataIdx: (chart, at, nearest) => known(chart.data[at], nearest), drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => this.zoom(null) } },
      legend: { markers: { dash: (chart, at) => (chart.series[at].dash ? "dashed" : "solid") } },
      scales: { x: { time: false, auto: false }, y: { range: ranged } },
      axes: [{ ...axis, label: x, size: 24, space: 62, ...(xTicks && { splits: (chart, _, low, high) => xTicks(chart.bbox.width / devicePixelRatio / (high - low)).filter((at) => at >= low && at <= high) }), values: (_, ticks) => ticks.map(xFormat ?? short) },
        { ...axis, label: y, size: (_, ticks) => 12 + LETTER * Math.max(0, ...(ticks ?? []).map((text) => text.length)), values: (_, ticks) => ticks.map(named) }],
      series: [{ label: x, value: (_, v) => (v == null ? "–" : (xTell ?? short)(v)) },
        ...series.map(({ name, kind, dashed, under, dots }) => ({ label: name, show: !this.off.has(name), stroke: ink(kind) + (under ? "73" : ""), width: under ? 6 : 2, dash: dashed ? [6, 5] : undefined, spanGaps: true, points: { show: Boolean(dots), size: 7, fill: ink(kind) }, value: (_, v) => (v == null ? "–" : named(v)) }))],
      hooks: { draw: [(chart) => this.data.here && ring(chart, this.data.here)], setSelect: [(chart) => this.selected(chart)], setSeries: [(chart, at, { show }) => { if (at && show != null) this.off[show ? "delete" : "add"](chart.series[at].label); }] },
    };
  }

  selected(chart) {
    const { left, width } = chart.select;
    if (width < LEAST_DRAG) return;
    const span = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoom(span);
  }
}
