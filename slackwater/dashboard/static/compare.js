// The Compare view: plans and runs side by side.
import { $, ask, colour, el, figure, kilograms, metricName, onTheme, percent, printable, scored, scoreTick, shortened, showTrouble, unpacked } from "./base.js";
import { lineChart } from "./chart.js";

const MOST = 8;

export class CompareView {
  constructor() {
    this.pinned = [];
    this.chosen = new Set();
    onTheme(() => this.draw());
  }

  /** Keep a copy of the plan in the Plan view. */
  pin(problem, plan, set) {
    const id = `pin-${this.pinned.length + 1}`;
    this.pinned.push({ id, kind: "pinned", label: `${this.pinned.length + 1}: ${kilograms(set.budget_kg)} kg, slack ${set.slack}, α ${set.alpha}`, plan: { ...plan }, metrics: plan.metrics ?? null, run: null });
    this.chosen.add(id);
    if (this.sources) this.choices();
  }

  async open(sources) {
    this.sources = sources.filter((one) => one.kind !== "scenario");
    if (!this.chosen.size) for (const one of this.sources.slice(0, 3)) this.chosen.add(one.id);
    this.choices();
    await this.load();
  }

  choices() {
    const all = [...this.pinned, ...this.sources];
    $("choices").replaceChildren(...all.map((one) => {
      const box = el("input", { type: "checkbox", value: one.id, checked: this.chosen.has(one.id) });
      box.addEventListener("change", () => { if (box.checked) this.chosen.add(one.id); else this.chosen.delete(one.id); this.load(); });
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
    if (!this.columns) return;
    const { columns } = this, plan = (read) => (one) => (one.plan ? read(one.plan) : "–"), run = (read) => (one) => (one.run ? read(one.run) : "–"), metric = (key) => (one) => (one.metrics ? figure(one.metrics[key]) : "–");
    $("compare-status").textContent = columns.length < 2 ? "Choose at least two." : "";
    const rows = [
      ["Budget, kg", plan((p) => kilograms(p.budget_kg))], ["Planned emissions, kg", plan((p) => kilograms(p.emissions_kg))], ["Slack, slots", plan((p) => String(p.settings.slack))],
      ["Alpha", plan((p) => String(p.settings.alpha))], ["Fine-tuning, slots", plan((p) => String(p.settings.fine_tune))], ["End time s", plan((p) => String(p.end))],
      ["Client-slots", plan((p) => p.slots.toLocaleString("en"))], ["Objective", plan((p) => figure(p.objective, 6))], ["Gap", plan((p) => (p.solver === "no-slack" ? "not optimised" : figure(p.gap, 2)))],
      ["Saved by slack", plan((p) => percent(p.savings.share))], ["Heterogeneity ρ_H", metric("rho_h")], ["Effective updates", metric("effective_updates")],
      ["Kind of run", run((r) => r.kind)], ["Status", run((r) => r.status)], ["Spent, kg", run((r) => kilograms(r.spent_kg))], ["Rounds", run((r) => r.rounds_planned ? `${r.rounds_done} of ${r.rounds_planned}` : `${r.rounds_done}`)],
      ["Score", run((r) => (r.score == null ? "–" : `${printable(r.metric.name)} ${scored(r.metric, r.score)}`))], ["Aggregator", run((r) => printable(r.aggregator ?? "–"))], ["Task", run((r) => printable(r.task ?? "–"))],
    ].map(([name, read]) => [name, columns.map(read)]).filter(([, cells]) => cells.some((cell) => cell !== "–"));
    const head = el("tr", {}, el("th", {}, ""), ...columns.map((one) => el("th", { scope: "col", title: printable(one.label) }, `${one.kind}: ${shortened(one.label, 42)}`)));
    const pictures = el("tr", {}, el("th", { scope: "row" }, "Schedule"), ...columns.map((one) => el("td", {}, one.error ? printable(one.error) : this.picture(one.plan))));
    $("columns").replaceChildren(el("thead", {}, head), el("tbody", {}, pictures, ...rows.map(([name, cells]) => el("tr", {}, el("th", { scope: "row" }, name), ...cells.map((cell) => el("td", {}, cell))))));
    if (!columns.length) $("columns").replaceChildren();
    const curves = columns.map((one, number) => ({ name: shortened(one.label, 40), points: one.run?.curve ?? [], kind: `c${number % 7}`, dots: true, dashed: number > 6 })).filter((one) => one.points.length);
    const metrics = columns.filter((one) => one.run?.curve?.length).map((one) => one.run.metric), alike = metrics.every((one) => one.name === metrics[0].name);
    // Scores by different metrics share no axis: then only the table compares the runs.
    $("curves-box").hidden = !curves.length || !alike;
    if (curves.length && alike) lineChart($("curves"), { series: curves, x: "kg CO2e spent", y: metricName(metrics[0]), height: 300, yFormat: scoreTick(metrics[0]) });
  }

  picture(plan) {
    const bits = unpacked(plan.schedule), slots = plan.settings.horizon, canvas = el("canvas", { role: "img", "aria-label": `Schedule with ${plan.slots} client-slots` });
    const [trains, idle, over] = [colour("trains"), colour("clean"), colour("over")], stop = plan.window[1];
    canvas.width = slots;
    canvas.height = bits.rows;
    const context = canvas.getContext("2d"), pixels = context.createImageData(slots, bits.rows);
    for (let row = 0, at = 0; row < bits.rows; row++) {
      for (let slot = 0; slot < slots; slot++, at += 4) {
        const [r, g, b] = bits.has(row, slot) ? trains : slot >= stop ? over : idle;
        pixels.data[at] = r; pixels.data[at + 1] = g; pixels.data[at + 2] = b; pixels.data[at + 3] = 255;
      }
    }
    context.putImageData(pixels, 0, 0);
    return canvas;
  }
}
