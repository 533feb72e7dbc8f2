// Line charts as SVG, with the palette's colours and a text alternative.

const NS = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function ticks(low, high, most) {
  const span = high - low || 1, raw = span / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

const shown = (value) => (Math.abs(value) >= 10000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : String(Number(value.toPrecision(4))));

const look = (one) => `line ${one.kind}${one.dashed ? " dashed" : ""}${one.under ? " under" : ""}`;

/** series: [{name, points: [[x, y]], kind: "c0", dashed, dots}]; here: a point to mark; xTicks(pixels of 1): where the x axis has marks; xSpan: its ends. */
export function lineChart(box, { series, x, y, here = null, zero = false, xTicks = null, xSpan = null, height = 250, wide = Math.max(300, box.clientWidth || 420), yFormat = shown, xFormat = shown }) {
  const all = series.flatMap((one) => one.points).concat(here ? [here] : []).filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
  if (!all.length) { box.replaceChildren(); box.textContent = "Nothing to draw yet."; return; }
  let [x0, x1] = xSpan ?? [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
  let [y0, y1] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
  if (zero) { x0 = Math.min(0, x0); y0 = Math.min(0, y0); }
  if (x1 - x0 < 1e-12 * Math.max(1, Math.abs(x1))) { x0 -= Math.abs(x0) * 0.05 || 0.5; x1 += Math.abs(x1) * 0.05 || 0.5; }
  if (y1 - y0 < 1e-9 * Math.max(1, Math.abs(y1))) { y0 -= Math.abs(y0) * 0.05 || 0.5; y1 += Math.abs(y1) * 0.05 || 0.5; }
  const pad = (y1 - y0) * 0.06;
  if (!zero || y0 < 0) y0 -= pad;
  y1 += pad;
  const rows = ticks(y0, y1, 5).map((at) => [at, yFormat(at)]), edge = { left: Math.max(58, 30 + 6.8 * Math.max(...rows.map(([, text]) => text.length))), right: 14, top: 12, bottom: 40 };
  const across = wide < 480 ? 1 : 2, legendHeight = series.length > 1 ? 18 * Math.ceil(series.length / across) : 0;
  const tall = height + legendHeight;
  const px = (value) => edge.left + (value - x0) / (x1 - x0) * (wide - edge.left - edge.right);
  const py = (value) => height - edge.bottom - (value - y0) / (y1 - y0) * (height - edge.top - edge.bottom);
  const root = svg("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `${y.toString()} against ${x}: ${series.map((s) => s.name).join(", ")}` });
  for (const at of xTicks?.((wide - edge.left - edge.right) / (x1 - x0)).filter((one) => one >= x0 && one <= x1) ?? ticks(x0, x1, Math.max(4, Math.floor(wide / 90)))) {
    root.append(svg("path", { class: "axis", d: `M${px(at)} ${edge.top}V${height - edge.bottom}` }));
    const label = svg("text", { x: px(at), y: height - edge.bottom + 15, "text-anchor": "middle" });
    label.textContent = xFormat(at);
    root.append(label);
  }
  for (const [at, text] of rows) {
    root.append(svg("path", { class: "axis", d: `M${edge.left} ${py(at)}H${wide - edge.right}` }));
    const label = svg("text", { x: edge.left - 6, y: py(at) + 4, "text-anchor": "end" });
    label.textContent = text;
    root.append(label);
  }
  const below = svg("text", { x: (edge.left + wide - edge.right) / 2, y: height - 6, "text-anchor": "middle" });
  below.textContent = x;
  const beside = svg("text", { x: 13, y: (height - edge.bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${(height - edge.bottom) / 2})` });
  beside.textContent = y;
  root.append(below, beside);
  for (const one of series) {
    const known = ([a, b]) => Number.isFinite(a) && Number.isFinite(b), points = one.points.filter(known);
    if (!points.length) continue;
    let on = "M"; // a point without a value breaks the line
    root.append(svg("path", { class: look(one), d: one.points.map((p) => { const step = known(p) ? `${on}${px(p[0]).toFixed(1)} ${py(p[1]).toFixed(1)}` : ""; on = step ? "L" : "M"; return step; }).join("") }));
    if (one.dots) for (const [a, b] of points) root.append(svg("circle", { class: `f${one.kind.replace("c", "")}`, cx: px(a), cy: py(b), r: 3 }));
  }
  if (here) root.append(svg("circle", { class: "here", cx: px(here[0]), cy: py(here[1]), r: 6 }));
  if (series.length > 1) {
    series.forEach((one, number) => {
      const left = edge.left + (number % across) * (wide - edge.left) / across, line = height + 12 + Math.floor(number / across) * 18;
      root.append(svg("path", { class: look(one), d: `M${left} ${line - 4}h24` }));
      const label = svg("text", { x: left + 30, y: line });
      label.textContent = one.name;
      root.append(label);
    });
  }
  box.replaceChildren(root);
}
