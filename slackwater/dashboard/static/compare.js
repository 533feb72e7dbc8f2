// The Compare view: plans and runs side by side, against a baseline, and where two schedules differ.
import { $, ask, colour, el, figure, kilograms, metricName, onTheme, percent, printable, scored, scoreTick, shortened, showTrouble, slotIso, slotTime, unpacked } from "./base.js";
import { Curves } from "./curves.js";
import { exports } from "./export.js";
import { Grid, gridColours } from "./grid.js";

const MOST = 8;
const SETTINGS = ["budget_kg", "slack", "alpha", "fine_tune", "recall", "end", "free"];

const ranking = (share) => `${figure(100 * share, 3)} %`;

/** Rows of the table: name, what to read, how to show it, and whether less (-1) or more (1) is better; 0 has no better, null no difference either. */
const ROWS = [
  ["Budget, kg", (c) => c.plan?.budget_kg, kilograms, 0], ["Planned emissions, kg", (c) => c.plan?.emissions_kg, kilograms, -1],
  ["Saved by slack, kg", (c) => c.plan?.savings.saved_kg, kilograms, 1], ["Saved by slack", (c) => c.plan?.savings.share, percent, 1],
  ["Slack, slots", (c) => c.plan?.settings.slack, String, 0], ["Alpha", (c) => c.plan?.settings.alpha, String, null], ["Fine-tuning, slots", (c) => c.plan?.settings.fine_tune, String, 0],
  ["End time s", (c) => c.plan?.end, String, 0], ["Ends", (c) => c.plan?.tiles?.ends.local, String, 0], ["Client-slots", (c) => c.plan?.slots, (n) => n.toLocaleString("en"), 1],
  ["Fewest slots of a client", (c) => c.plan?.tiles?.people.min_slots, String, 1],
  ["Predicted remaining error (ranking score)", (c) => c.plan?.tiles?.quality?.remaining_error, ranking, -1],
  ["Objective", (c) => c.plan?.objective, (v) => figure(v, 6), 1, (c) => `${c.plan?.settings.alpha} ${c.plan?.settings.g_max_kg}`],
  ["Gap", (c) => (c.plan?.solver === "no-slack" ? "not optimised" : c.plan?.gap), (v) => (typeof v === "string" ? v : figure(v, 2)), null],
  ["Heterogeneity ρ_H", (c) => c.metrics?.rho_h, (v) => figure(v), -1], ["Effective updates", (c) => c.metrics?.effective_updates, (v) => figure(v), 1],
  ["Kind of run", (c) => c.run?.kind, String, 0], ["Status", (c) => c.run?.status, String, 0], ["Spent, kg", (c) => c.run?.spent_kg, kilograms, -1],
  ["Rounds", (c) => c.run && (c.run.rounds_planned ? `${c.run.rounds_done} of ${c.run.rounds_planned}` : `${c.run.rounds_done}`), String, 0],
  ["Score", (c) => c.run?.score, (v, c) => `${printable(c.run.metric.name)} ${scored(c.run.metric, v)}`, (c) => (c.run?.metric.higher_is_better ? 1 : -1), (c) => c.run?.metric.name],
  ["Aggregator", (c) => c.run?.aggregator, (v) => printable(v), 0], ["Task", (c) => c.run?.task, (v) => printable(v), 0],
];

export class CompareView {
  constructor(noted = () => {}) {
    Object.assign(this, { noted, pinned: [], chosen: new Set(), columns: [], base: null, other: null });
    $("baseline").addEventListener("change", () => { this.base = $("baseline").value; this.draw(); noted(); });
    $("difference").addEventListener("change", () => { this.other = $("difference").value; this.differ(); noted(); });
    this.grid = new Grid($("differences"), "Where two schedules differ, clients by hour", (client, slot) => this.tell(client, slot));
    this.curves = new Curves($("curves"));
    exports($("compare-export"), "compare", { rows: () => this.table });
    exports($("differences-export"), "difference", { notes: () => [`${this.pair.other.label}, against ${this.pair.base.label}`], picture: () => this.grid.picture(), rows: () => this.changes() });
    exports($("curves-export"), "score", { picture: () => this.curves.picture(), rows: () => [["plan or run", "kg CO2e, as settled", "score"], ...this.columns.flatMap((one) => (one.run?.curve ?? []).map((point) => [one.label, ...point]))] });
    onTheme(() => this.draw());
  }

  /** Keep a copy of the plan in the Plan view. `settings` plan it again from a shared link. */
  pin(problem, plan, settings, show = true) {
    const id = `pin-${this.pinned.length + 1}`, { clients, start, slot_minutes } = problem;
    this.pinned.push({ id, kind: "pinned", label: `${this.pinned.length + 1}: ${kilograms(plan.budget_kg)} kg, slack ${plan.settings.slack}, α ${plan.settings.alpha}`, plan, metrics: plan.metrics ?? null, run: null, clients: clients.name, start, slot_minutes, settings });
    if (show) this.chosen.add(id);
    if (this.sources) this.choices();
  }

  /** Return what a shared link restores. */
  link() {
    const fields = this.pinned.map((one) => ["pin", new URLSearchParams(one.settings).toString()]);
    if (this.chosen.size) fields.push(["show", [...this.chosen].join(",")]);
    if (this.base) fields.push(["base", this.base]);
    if (this.other) fields.push(["difference", this.other]);
    return fields;
  }

  /** Take the pins and choices of a link; pins that are not there yet are planned again. */
  async restore(fields) {
    for (const text of fields.getAll("pin").slice(this.pinned.length, MOST)) {
      const wanted = new URLSearchParams(text), query = { source: wanted.get("source") };
      for (const key of SETTINGS) if (wanted.has(key)) query[key] = wanted.get(key);
      const [problem, plan] = await Promise.all([ask("/api/problem", { source: query.source }), ask("/api/plan/best", query)]);
      if (plan.schedule) this.pin(problem, plan, query, false);
    }
    if (fields.has("show")) this.chosen = new Set(fields.get("show").split(",").filter(Boolean));
    this.base = fields.get("base");
    this.other = fields.get("difference");
  }

  async open(sources) {
    this.sources = sources.filter((one) => one.kind !== "scenario");
    if (!this.chosen.size) for (const one of [...this.pinned, ...this.sources].slice(0, 3)) this.chosen.add(one.id);
    this.choices();
    await this.load();
  }

  choices() {
    const all = [...this.pinned, ...this.sources];
    $("choices").replaceChildren(...all.map((one) => {
      const box = el("input", { type: "checkbox", value: one.id, checked: this.chosen.has(one.id) });
      box.addEventListener("change", () => { if (box.checked) this.chosen.add(one.id); else this.chosen.delete(one.id); this.load(); this.noted(); });
      return el("label", {}, box, ` ${one.kind}: ${printable(one.label)}`);
    }));
    if (!all.length) $("choices").textContent = "Nothing to compare yet. Pin a plan in the Plan view, or save one with: slackwater plan SCENARIO --out DIR";
  }

  async load() {
    const ids = this.sources.filter((one) => this.chosen.has(one.id)).map((one) => one.id);
    const pinned = this.pinned.filter((one) => this.chosen.has(one.id));
    if (ids.length + pinned.length > MOST) { $("compare-status").textContent = `At most ${MOST} can be compared. Deselect some.`; return; }
    try {
      const found = ids.length ? (await ask("/api/compare", { ids: ids.join(",") })).columns : [];
      this.columns = [...pinned, ...found];
      showTrouble(null);
      this.draw();
    } catch (error) { showTrouble(error); }
  }

  draw() {
    const { columns } = this, planned = columns.filter((one) => one.plan);
    const pick = (id, wanted, list, at) => {
      $(id).replaceChildren(...list.map((one) => el("option", { value: one.id }, `${one.kind}: ${shortened(one.label, 42)}`)));
      $(id).value = list.some((one) => one.id === wanted) ? wanted : list[Math.min(at, list.length - 1)]?.id ?? "";
      return list.find((one) => one.id === $(id).value);
    };
    const base = pick("baseline", this.base, columns, 0);
    pick("difference", this.other, planned.filter((one) => one !== base), 0);
    $("compare-tools").hidden = columns.length < 2;
    $("compare-status").textContent = columns.length < 2 && this.pinned.length + (this.sources?.length ?? 0) ? "Choose at least two." : "";
    const head = el("tr", {}, el("th", {}, ""), ...columns.map((one) => el("th", { scope: "col", title: printable(one.label) }, `${one.kind}: ${shortened(one.label, 42)}`, one === base && columns.length > 1 ? el("small", {}, "baseline") : "")));
    const pictures = el("tr", {}, el("th", { scope: "row" }, "Schedule, one time axis"), ...columns.map((one) => el("td", {}, one.error ? printable(one.error) : this.picture(one, planned))));
    const rows = ROWS.map((row) => this.row(row, base)).filter(Boolean);
    $("columns").replaceChildren(el("thead", {}, head), el("tbody", {}, pictures, ...rows));
    if (!columns.length) $("columns").replaceChildren();
    this.table = [["", ...columns.map((one) => `${one.kind}: ${one.label}`)], ...ROWS.map(([name, read]) => [name, ...columns.map(read)]).filter((row) => row.slice(1).some((value) => value != null))];
    const curves = columns.map((one, number) => ({ name: shortened(one.label, 40), points: one.run?.curve ?? [], kind: `c${number % 7}`, dots: true, dashed: number > 6 })).filter((one) => one.points.length);
    const metrics = columns.filter((one) => one.run?.curve?.length).map((one) => one.run.metric), alike = metrics.every((one) => one.name === metrics[0].name);
    // Scores by different metrics share no axis: then only the table compares the runs.
    $("curves-box").hidden = !curves.length || !alike;
    if (curves.length && alike) this.curves.show({ series: curves, x: "kg CO2e, as settled", y: metricName(metrics[0], metrics[0].unit), yFormat: scoreTick(metrics[0]) });
    this.differ();
  }

  /** Return a row: each value, its difference from the baseline, and a mark at the best. Values of different kinds are not compared. */
  row([name, read, show, better, kind], base) {
    const { columns } = this, values = columns.map(read);
    if (values.every((value) => value == null)) return null;
    const number = (value) => (value === "inf" ? Infinity : typeof value === "number" ? value : NaN), sign = (one) => (typeof better === "function" ? better(one) : better);
    const same = columns.map((one, i) => !kind || (values[i] != null && kind(one) === kind(base))), own = columns.indexOf(base);
    const rated = values.map((value, i) => (same[i] ? number(value) * sign(columns[i]) : NaN)).filter((value) => !Number.isNaN(value));
    const top = Math.max(...rated), marked = rated.length > 1 && rated.some((value) => value !== top);
    return el("tr", {}, el("th", { scope: "row" }, name), ...columns.map((one, i) => {
      if (values[i] == null) return el("td", {}, "–");
      const best = same[i] && sign(one) && marked && number(values[i]) * sign(one) === top, by = number(values[i]) - number(values[own]);
      const cell = el("td", best ? { class: "best" } : {}, show(values[i], one));
      if (best) cell.append(el("small", {}, "best"));
      if (i !== own && !same[i] && values[own] == null) return cell;
      if (i !== own && !same[i]) cell.append(el("small", {}, "not comparable"));
      else if (i !== own && better !== null && Number.isFinite(by) && by !== 0 && !(show === percent && Math.abs(by) < 5e-4)) {
        const shares = show === percent || show === ranking, way = by > 0 ? "+" : "−", part = percent(Math.abs(by / number(values[own]))), unit = shares ? show(Math.abs(by)).replace("%", "points") : show(Math.abs(by), one);
        cell.append(el("small", { class: sign(one) ? (by * sign(one) > 0 ? "better" : "worse") : "" }, `${way}${unit}${shares || number(values[own]) * number(values[i]) <= 0 || part === "0.0 %" ? "" : ` (${way}${part})`}`));
      }
      return cell;
    }));
  }

  /** Return first slot and number of slots of an axis on which all these schedules lie, in slots of the first. */
  axis(list) {
    const { start, slot_minutes } = list[0], timed = start && list.every((one) => one.start && one.slot_minutes === slot_minutes);
    const shifts = new Map(list.map((one) => [one, timed ? Math.round(Date.parse(one.start) / 60000 / slot_minutes) : 0])), first = Math.min(...shifts.values());
    for (const [one, at] of shifts) shifts.set(one, at - first);
    return { shifts, slots: Math.max(...list.map((one) => shifts.get(one) + one.plan.settings.horizon)), start: timed ? new Date(first * slot_minutes * 60000).toISOString() : null, slot_minutes };
  }

  picture(one, all) {
    const { plan } = one, { shifts, slots } = this.axis(all), shift = shifts.get(one), bits = unpacked(plan.schedule), canvas = el("canvas", { role: "img", "aria-label": `Schedule with ${plan.slots} client-slots` });
    const [trains, idle, over] = [colour("trains"), colour("clean"), colour("over")], stop = plan.window[1];
    canvas.width = slots;
    canvas.height = bits.rows;
    const context = canvas.getContext("2d"), pixels = context.createImageData(slots, bits.rows);
    for (let row = 0, at = 0; row < bits.rows; row++) {
      for (let x = 0; x < slots; x++, at += 4) {
        const slot = x - shift, [r, g, b] = slot >= 0 && slot < stop && bits.has(row, slot) ? trains : slot < 0 || slot >= stop ? over : idle;
        pixels.data[at] = r; pixels.data[at + 1] = g; pixels.data[at + 2] = b; pixels.data[at + 3] = 255;
      }
    }
    context.putImageData(pixels, 0, 0);
    return canvas;
  }

  /** Show on one time axis who trains when in only one of two plans. */
  differ() {
    const base = this.columns.find((one) => one.id === $("baseline").value), other = this.columns.find((one) => one.id === $("difference").value);
    $("differences-box").hidden = !base?.plan || !other?.plan;
    this.pair = null;
    if ($("differences-box").hidden) return;
    const { shifts, slots, start, slot_minutes } = this.axis([base, other]), names = [...new Set([...base.clients, ...other.clients])], look = gridColours();
    const side = (one) => { const bits = unpacked(one.plan.schedule), at = new Map(one.clients.map((name, c) => [name, c])), shift = shifts.get(one), { horizon } = one.plan.settings; return (row, x) => { const c = at.get(names[row]), slot = x - shift; return c !== undefined && slot >= 0 && slot < horizon && Boolean(bits.has(c, slot)); }; };
    this.pair = { problem: { start, slot_minutes }, slots, names, before: side(base), after: side(other), base, other };
    const { before, after } = this.pair, counts = [0, 0, 0], line = new Uint8Array(slots), stop = shifts.get(other) + other.plan.window[1];
    for (let row = 0; row < names.length; row++) for (let x = 0; x < slots; x++) { const b = before(row, x), a = after(row, x); if (b || a) counts[b && a ? 0 : a ? 1 : 2]++; }
    $("differences-note").textContent = `Against the baseline: ${counts[0].toLocaleString("en")} client-slots are the same, ${counts[1].toLocaleString("en")} only here (frame), ${counts[2].toLocaleString("en")} only in the baseline (broken frame).`;
    this.grid.show({
      problem: this.pair.problem, slots, rows: [...names.keys()], labels: names, groups: names, colours: look.colours,
      keys: [[look.TRAINS, "in both"], [look.EXTRA, "only here", "extra"], [look.SUPERSEDED, "only in the baseline", "superseded"], [look.OVER, "after the end"], ["window", "fine-tuning window"]], window: [shifts.get(other) + other.plan.window[0], stop],
      paint: (row) => { for (let x = 0; x < slots; x++) { const b = before(row, x), a = after(row, x); line[x] = a ? (b ? look.TRAINS : look.EXTRA) : b ? look.SUPERSEDED : x >= stop ? look.OVER : 0; } return line; },
      cannot: () => false,
      mark: (row, x) => { const b = before(row, x), a = after(row, x); return a === b ? null : a ? "extra" : "superseded"; },
    });
  }

  tell(row, slot) {
    const { before, after, names, problem } = this.pair, b = before(row, slot), a = after(row, slot);
    return [`${printable(names[row])}, ${slotTime(problem, slot)}`, a ? (b ? "Trains in both." : "Trains here, not in the baseline.") : b ? "Trains in the baseline, not here." : "Trains in neither."];
  }

  changes() {
    const { before, after, names, problem, slots } = this.pair, rows = [["client", "time", "in the baseline", "here"]];
    names.forEach((name, row) => { for (let x = 0; x < slots; x++) { const b = before(row, x), a = after(row, x); if (a !== b) rows.push([name, slotIso(problem, x), Number(b), Number(a)]); } });
    return rows;
  }
}
