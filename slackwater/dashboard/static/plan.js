// The Plan view. A moving slider plans for the displayed end time; when it rests, the search covers all end times.
import { $, ask, figure, fill, kilograms, legend, onTheme, percent, printable, shortened, showTrouble, slotIso, slotTime, unpacked } from "./base.js";
import { exports } from "./export.js";
import { Grid, gridColours, gridShades } from "./grid.js";
import { HourCharts } from "./hours.js";
import { Curves } from "./curves.js";
import { tellCell } from "./why.js";

const REST_MS = 120;
const MANY = 100;
const CHOSEN = ["alpha", "fine_tune", "recall"];
/** Begins a filter for the clients of one zone, which is not a part of another name. */
export const ONE_ZONE = "zone:";
const ALPHAS = ["max-min", "log", 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1];
const page = Math.random().toString(36).slice(2) + Date.now().toString(36);

export class PlanView {
  constructor(pin, noted = () => {}) {
    this.noted = noted;
    this.number = 0;
    this.grid = new Grid($("schedule"), "Schedule of clients by hour", (row, slot) => (row < 0 ? this.tellZone(~row, slot) : tellCell(this.problem, this.plan, this.bits, this.available, row, slot)), "Point at a cell, or use the arrow keys, to see its emissions and why the client trains or not.");
    this.opened = new Set();
    for (const id of ["budget", "slack", "alpha", "fine-tune", "end"]) $(id).addEventListener("input", (event) => this.moved(id, event));
    $("budget-kg").addEventListener("change", () => { const kg = Number($("budget-kg").value); if (kg > 0) { this.set.budget_kg = kg; $("budget").value = this.fromBudget(kg); this.changed(); } });
    $("end-auto").addEventListener("change", () => { $("end").disabled = false; this.set.end = $("end-auto").checked ? null : Number($("end").value); this.changed(); });
    this.hours = new HourCharts($("hours"), this.grid, () => this.noted(), (slot) => { this.slot = slot; });
    $("finish").addEventListener("change", () => this.finish());
    $("zoom-out").addEventListener("click", () => this.hours.zoom(null));
    this.curve = new Curves($("front"));
    const notes = () => [`${this.problem.label}: ${$("plan-status").textContent}`, $("origin").textContent];
    exports($("schedule-export"), "schedule", { notes, picture: () => this.grid.picture(), rows: () => this.table() });
    exports($("hours-export"), "hours", { notes, picture: () => this.hours.picture(), rows: () => this.hours.rows() });
    exports($("front-export"), "front", { notes, picture: () => this.curve.picture(), rows: () => this.front && [["budget_kg", "objective", "emissions_kg"], ...this.front[0].points.map((p) => [p.budget_kg, p.objective, p.emissions_kg])] });
    for (const [id, factor] of [["zoom-in", 0.5], ["zoom-less", 2]]) $(id).addEventListener("click", () => this.grid.zoomBy(factor));
    for (const id of ["advanced", "optimiser"]) $(id).addEventListener("toggle", () => this.noted());
    $("optimiser").addEventListener("toggle", () => { if ($("optimiser").open && this.front) this.drawFront(...this.front); });
    $("sliders").addEventListener("submit", (event) => event.preventDefault());
    $("filter").addEventListener("input", () => { this.draw(); this.noted(); });
    $("order").addEventListener("change", () => { this.draw(); this.noted(); });
    $("group").addEventListener("change", () => { this.draw(); this.noted(); });
    $("reset").addEventListener("click", () => this.reset());
    $("copy").addEventListener("click", () => this.copy());
    $("pin").addEventListener("click", () => { if (this.plan?.schedule) { pin(this.problem, this.plan, this.settings()); $("done").textContent = "Pinned. See the Compare view."; } });
    $("toml-box").addEventListener("toggle", () => { if ($("toml-box").open) this.write().catch(showTrouble); });
    onTheme(() => { this.shades = null; this.draw(); });
  }

  async open(source, wanted = null) {
    this.stop();
    this.plan = null;
    this.problem = await ask("/api/problem", { source });
    this.available = unpacked(this.problem.available);
    this.shades = this.means = this.near = null;
    this.hours.reset();
    this.settled = null;
    this.reset(wanted);
  }

  /** Say where the intensity is from. */
  origin() {
    const { synthetic, factor, sources, filled_hours: hours } = this.problem;
    return `${synthetic ? "Synthetic intensity. " : ""}Intensity: ${factor}, from ${sources.slice(0, 3).map(printable).join("; ")}${sources.length > 3 ? ` and ${sources.length - 3} more` : ""}${hours ? `, ${hours} hours filled in` : ""}.`;
  }

  reset(wanted = null) {
    const { settings, most_slack } = this.problem, chosen = this.settled?.recommended ?? {};
    this.free = new Set(settings.free);
    this.set = { budget_kg: settings.budget_kg, slack: settings.slack, alpha: settings.alpha, fine_tune: settings.fine_tune, recall: settings.recall, end: null };
    for (const name of this.free) this.set[name] = chosen[name] ?? this.set[name];
    this.least = settings.budget_kg / 30;
    this.most = Math.max(settings.budget_kg * 1.5, Math.min(this.problem.everything_kg, settings.budget_kg * 30));
    $("slack").max = most_slack;
    $("fine-tune").max = Math.max(settings.fine_tune, Math.min(24, settings.rounds));
    const many = this.problem.clients.name.length > MANY;
    $("group").checked = many;
    $("order").value = "given";
    $("filter").value = "";
    this.opened.clear();
    if (wanted) this.restore(wanted);
    this.place();
    this.changed();
  }

  /** Move the sliders to the settings. */
  place() {
    const { set } = this;
    this.alphas = [...ALPHAS];
    if (!this.alphas.includes(set.alpha)) {
      const at = typeof set.alpha === "number" ? this.alphas.findIndex((a) => typeof a === "number" && a > set.alpha) : 0;
      this.alphas.splice(at < 0 ? this.alphas.length : at, 0, set.alpha);
    }
    $("alpha").max = this.alphas.length - 1;
    $("alpha").value = this.alphas.indexOf(set.alpha);
    $("slack").value = set.slack;
    $("fine-tune").value = set.fine_tune;
    $("budget").value = this.fromBudget(set.budget_kg);
    $("end").max = set.slack;
    $("end-auto").checked = set.end == null;
    if (set.end != null) $("end").value = set.end;
    const by = (name) => (this.free.has(name) ? " (chosen)" : "");
    $("alpha-out").value = `${set.alpha}${by("alpha")}`;
    $("alpha").setAttribute("aria-valuetext", $("alpha-out").value);
    $("fine-tune-out").value = `${set.fine_tune} slot${set.fine_tune === 1 ? "" : "s"}${by("fine_tune")}`;
  }

  /** Take the settings of a shared link, as far as they are possible here. */
  restore(wanted) {
    const whole = (key, most) => { const value = Number(wanted.get(key)); return wanted.has(key) && Number.isInteger(value) && value >= 0 && value <= most ? value : null; };
    const { set } = this, kg = Number(wanted.get("budget_kg")), alpha = wanted.get("alpha"), number = Number(alpha);
    const take = (name, value) => { if (value != null) { set[name] = value; this.free.delete(name); } };
    if (kg > 0 && Number.isFinite(kg)) set.budget_kg = kg;
    take("alpha", alpha && number > 0 && number <= 1 ? number : ["log", "max-min"].includes(alpha) ? alpha : null);
    take("fine_tune", whole("fine_tune", Number($("fine-tune").max)));
    take("recall", whole("recall", this.problem.settings.horizon));
    set.slack = whole("slack", this.problem.most_slack) ?? set.slack;
    set.end = whole("end", set.slack);
    $("filter").value = (wanted.get("filter") ?? "").slice(0, 80);
    if ([...$("order").options].some((one) => one.value === wanted.get("order"))) $("order").value = wanted.get("order");
    if (wanted.has("group")) $("group").checked = wanted.get("group") === "yes";
    for (const zone of (wanted.get("zones") ?? "").split(",")) if (this.problem.zones.includes(zone)) this.opened.add(this.problem.zones.indexOf(zone));
    for (const id of ["advanced", "optimiser"]) $(id).open = (wanted.get("open") ?? "").split(",").includes(id);
    this.hours.off = new Set((wanted.get("off") ?? "").split(",").filter(Boolean));
    const zoom = (wanted.get("zoom") ?? "").split("-").map(Number), slots = this.problem.settings.rounds + set.slack;
    this.grid.range = zoom.length === 2 && zoom.every(Number.isInteger) && zoom[0] >= 0 && zoom[1] > zoom[0] && zoom[1] <= slots ? zoom : null;
    this.grid.layout();
  }

  /** Return what a shared link restores; settings as in the scenario are left out. */
  link() {
    const known = this.problem.settings, fields = {}, many = this.problem.clients.name.length > MANY, open = ["advanced", "optimiser"].filter((id) => $(id).open);
    for (const key of ["budget_kg", "slack"]) if (this.set[key] !== known[key]) fields[key] = this.set[key];
    for (const key of CHOSEN) if (!this.free.has(key) && (this.set[key] !== known[key] || known.free.includes(key))) fields[key] = this.set[key];
    if (this.set.end != null) fields.end = this.set.end;
    if ($("filter").value) fields.filter = $("filter").value;
    if ($("order").value !== "given") fields.order = $("order").value;
    if ($("group").checked !== many) fields.group = $("group").checked ? "yes" : "no";
    if (this.opened.size) fields.zones = [...this.opened].map((g) => this.problem.zones[g]).join(",");
    if (this.grid.range) fields.zoom = this.grid.range.join("-");
    if (open.length) fields.open = open.join(",");
    if (this.hours.off.size) fields.off = [...this.hours.off].join(",");
    return fields;
  }

  /** Turn the date of "finish by" into slack. */
  finish() {
    const at = Date.parse(`${$("finish").value}Z`), { start, slot_minutes, settings, most_slack } = this.problem;
    if (!start || !Number.isFinite(at)) return;
    const slots = Math.floor((at - Date.parse(start)) / 60000 / slot_minutes);
    this.set.slack = Math.min(Math.max(slots - settings.rounds, 0), most_slack);
    $("slack").value = this.set.slack;
    this.changed();
  }

  /** Return who trains when, a row for each client. */
  table() {
    const { clients, zones } = this.problem, stop = this.plan.window[1], times = [...Array(stop).keys()];
    return [["client", "zone", "slots", "kg", ...times.map((slot) => slotIso(this.problem, slot))],
      ...clients.name.map((name, c) => [name, zones[clients.zone[c]], this.plan.client_slots[c], this.plan.client_kg[c], ...times.map((slot) => this.bits.has(c, slot))])];
  }

  /** The budget slider is logarithmic: one kilogram matters more in a small budget. */
  toBudget(position) { return this.least * (this.most / this.least) ** (position / 1000); }
  fromBudget(kg) { return Math.round(1000 * Math.log(kg / this.least) / Math.log(this.most / this.least)); }

  moved(id) {
    const value = Number($(id).value);
    if (id === "budget") this.set.budget_kg = Number(this.toBudget(value).toPrecision(4));
    if (id === "slack") this.set.slack = value;
    if (id === "alpha") this.set.alpha = this.alphas[value];
    if (id === "fine-tune") this.set.fine_tune = value;
    this.free.delete(id.replace("-", "_"));
    if (id === "end") { this.set.end = value; $("end-auto").checked = false; }
    this.changed();
  }

  changed() {
    const { set } = this;
    $("done").textContent = "";
    if (set.end != null) set.end = Math.min(set.end, set.slack);
    $("budget-kg").value = set.budget_kg;
    $("slack-out").value = `${set.slack} slot${set.slack === 1 ? "" : "s"} of slack`;
    const { start, slot_minutes, settings, most_slack } = this.problem;
    const moment = (slots) => new Date(Date.parse(start) + slots * slot_minutes * 60000).toISOString().slice(0, 16);
    $("finish").disabled = !start;
    if (start) Object.assign($("finish"), { value: moment(settings.rounds + set.slack), min: moment(settings.rounds), max: moment(settings.rounds + most_slack) });
    this.place();
    this.noted();
    $("budget").setAttribute("aria-valuetext", `${set.budget_kg} kg`);
    this.mark(null);
    this.began ??= performance.now();
    this.number++;
    this.waitingFor(true);
    this.stop();
    if (!this.asking) this.quick();
  }

  stop() {
    clearTimeout(this.resting);
    this.longer?.abort();
  }

  settings() { return { source: this.problem.source, ...this.set, end: this.set.end ?? "auto", free: [...this.free].join(",") }; }

  query(more = {}) { return { ...this.settings(), page, number: this.number, ...more }; }

  /** Send one request at a time; later changes go into the next one. */
  async quick() {
    this.asking = true;
    try {
      let number, began;
      do {
        number = this.number;
        began = this.began;
        this.began = null;
        const plan = await ask("/api/plan", this.query({ near: this.near })).catch((error) => { if (!error.outdated) throw error; return null; });
        if (plan?.schedule || plan?.status === "infeasible") {
          this.show(plan, number);
          this.report(began, number);
        } else if (plan) this.status(plan.message, "waiting");
      } while (number !== this.number);
      this.trouble(null);
      this.resting = setTimeout(() => this.best(), REST_MS);
    } catch (error) {
      this.trouble(error);
    } finally {
      this.asking = false;
    }
  }

  /** Show what went wrong, or take it back with null; what another part of the page says stays. */
  trouble(error) {
    if (error?.outdated) return;
    if (error || this.troubled) showTrouble(error);
    this.troubled = Boolean(error);
  }

  /** For the benchmark: time from the slider's event to the frame after drawing. */
  report(began, number) {
    if (began == null) return;
    requestAnimationFrame(() => setTimeout(() => document.dispatchEvent(new CustomEvent("slackwater:drawn", { detail: { number, ms: performance.now() - began } }))));
  }

  /** Follow the quick schedule: the largest objective over all end times, then the plan of `slackwater plan`, with metrics and front. */
  async best() {
    const number = this.number, { signal } = (this.longer = new AbortController());
    const current = (event) => { if (number === this.number) document.dispatchEvent(new CustomEvent(`slackwater:${event}`, { detail: { number } })); return number === this.number; };
    try {
      if (this.plan?.metrics && this.shown === number) { // known from before: only its mark is missing
        const joint = this.set.end == null ? await ask("/api/plan/joint", this.query(), signal).catch(() => null) : null;
        if (number !== this.number) return;
        if (joint?.schedule) { this.mark(joint.end); this.draw(); }
      } else {
        this.waitingFor(true);
        const joint = await ask("/api/plan/joint", this.query(), signal);
        if (number !== this.number) return;
        this.jointly(joint);
        current("joint");
        await new Promise((rested) => setTimeout(rested, REST_MS)); // a slider that moves on needs the processor more than the start of a long search
        if (number !== this.number) return;
        const plan = await ask("/api/plan/best", this.query(), signal);
        if (number !== this.number) return;
        this.show(plan, number);
      }
      if (!current("settled") || !this.plan) return;
      const front = await ask("/api/front", this.query({ end: this.plan.end, free: "" }), signal);
      if (number === this.number) this.drawFront(front, this.plan);
    } catch (error) {
      if (!error.outdated) { this.waitingFor(false); this.trouble(error); }
    }
  }

  /** Mark the end time with the largest objective, or none with null. */
  mark(end) {
    this.largest = end == null ? null : this.problem.settings.rounds + end;
    $("end-hint-joint").textContent = end == null ? "" : `; largest objective at s = ${end}`;
  }

  /** Show the largest objective over all end times; where the planner chooses by predicted error, only mark it. */
  jointly(joint) {
    const auto = this.problem.settings.planner === "auto";
    if (!joint.schedule) { this.show(joint); return; }
    if (this.set.end == null) this.mark(joint.end);
    if (!auto || !this.settled || this.shown !== this.number) this.show(joint); else this.draw();
    if (auto) this.status(`${this.used(this.plan)} ${this.plan.end === joint.end ? "Largest objective" : "Best schedule"} for s = ${this.plan.end}; comparing settings and end times for the least predicted error.`, "waiting");
  }

  /** Return which settings the planner chose; those that the user set are not among them. */
  chosen({ end, settings }) {
    const own = Object.entries({ alpha: "alpha", fine_tune: "fine-tuning", recall: "recall" }).filter(([key]) => this.free.has(key)).map(([key, name]) => `${name} ${settings[key]}`);
    const chosen = [...(this.set.end == null ? [`end s = ${end}`] : []), ...own];
    return chosen.length ? `Chosen for the least predicted error: ${chosen.join(", ")}.` : `Best schedule for s = ${end}.`;
  }

  used(plan) { return `${kilograms(plan.emissions_kg)} of ${kilograms(plan.budget_kg)} kg.`; }

  show(plan, number = this.number) {
    this.shown = number;
    const was = this.plan;
    this.plan = plan.schedule ? plan : null;
    if (!plan.schedule) {
      this.status(plan.message, "infeasible");
      this.bits = null;
      this.tiles(null);
      for (const id of ["totals", "metrics"]) $(id).replaceChildren();
      this.curve.show({ series: [], x: "", y: "" });
      this.waitingFor(false);
      this.front = null;
      $("front-note").textContent = "";
      this.plan = null;
      this.draw();
      return;
    }
    this.bits = unpacked(plan.schedule);
    this.near = plan.end;
    if (plan.metrics) this.settled = plan;
    if (plan.recommended) for (const name of this.free) this.set[name] = plan.recommended[name] ?? this.set[name];
    this.place();
    if (this.set.end == null) $("end").value = plan.end;
    const ends = this.problem.start ? ` · ${slotTime(this.problem, this.problem.settings.rounds + plan.end).replace(/ \d{4},| UTC/g, "")}` : "";
    $("end-out").value = `s = ${plan.end}${ends}`;
    this.draw();
    this.tiles(plan);
    this.totals(plan);
    const settled = "metrics" in plan;
    this.waitingFor(!settled);
    if (settled) this.metrics(plan);
    const used = this.used(plan);
    if (plan.recommended) this.status(`${used} ${this.chosen(plan)}`, "");
    else if (settled || plan.all_ends) this.status(`${used} ${plan.message}${plan.all_ends ? ` Best of all end times: s = ${plan.end}.` : ` For s = ${plan.end}.`}`, settled ? "" : "waiting");
    else if (!was?.waiting) this.status(`${used} Best schedule for s = ${plan.end}; checking the other end times.`, "waiting");
    plan.waiting = !settled;
  }

  status(text, kind) {
    $("plan-status").textContent = text;
    $("plan-status").className = `status ${kind}`;
  }

  waitingFor(yes) {
    for (const id of ["metrics", "front"]) $(id).classList.toggle("stale", yes);
    $("tiles").classList.toggle("waiting", yes);
  }

  /** Answer the four questions: what is saved, when it ends, what quality to expect, who takes part. */
  tiles(plan) {
    const tell = (id, big, note) => { $(`tile-${id}`).textContent = big; $(`tile-${id}-note`).textContent = note.replace(/(\d) (?=%|kg\b|h\b|min\b)/g, "$1\u00a0"); };
    if (!plan) { for (const id of ["saved", "ends", "quality", "who"]) tell(id, "–", id === "saved" ? "No schedule fits these settings." : ""); return; }
    const { saved, ends, quality: q, people } = plan.tiles, { settings } = plan, names = this.problem.clients.name, last = settings.rounds + plan.end;
    const emits = `The run emits ${kilograms(plan.emissions_kg)} of ${kilograms(plan.budget_kg)} kg; the same work at once emits ${kilograms(saved.without_kg)} kg.`, little = Math.abs(saved.kg) < 5e-4 * saved.without_kg;
    if (saved.without_kg > 0 && !little && saved.kg > 0) tell("saved", `${kilograms(saved.kg)} kg (${percent(saved.share)})`.replaceAll(" ", "\u00a0").replace("\u00a0(", " ("), emits);
    else tell("saved", "Nothing", `${emits}${little || saved.without_kg <= 0 ? "" : ` Waiting costs ${kilograms(-saved.kg)} kg here.`}`);
    const { early_hours: hours } = ends, early = hours >= 48 ? `${(hours / 24).toFixed(1)} days` : hours < 1 ? `${Math.round(60 * hours)} min` : `${Number(hours.toFixed(1))} h`;
    if (this.problem.start) tell("ends", `${ends.local}${ends.time_zone === "UTC" ? "\u00a0UTC" : ""}`, `${ends.time_zone === "UTC" ? "" : `${ends.time_zone} time; ${slotTime(this.problem, last)}. `}${hours > 0 ? `${early} before the latest end.` : "The latest end allowed."}`);
    else tell("ends", `After slot ${last}`, `The latest end is slot ${settings.horizon}.`);
    const three = (share) => `${Number((100 * share).toPrecision(3))} %`;
    const without = q.without_slack_error != null ? ` The same budget without slack leaves ${three(q.without_slack_error)}.` : "", { missing, low, high } = q.below_full;
    const beside = (share) => { const points = Number((100 * share).toFixed(1)); return points ? `${Math.abs(points)} % ${points > 0 ? "below" : "above"}` : "equal to"; };
    tell("quality", `${three(q.remaining_error)} error left`.replaceAll(" ", "\u00a0").replace("\u00a0error", " error"), `Predicted: a ranking score, not an accuracy.${without} Gain in score ${beside(missing)} full training's; on other tasks ${beside(low)} to ${beside(high)}.`);
    const order = [...names.keys()].sort((a, b) => plan.client_slots[b] - plan.client_slots[a] || a - b), one = (c) => `${shortened(names[c], 24)} ${plan.client_slots[c].toLocaleString("en")}`;
    const shown = order.length > 4 ? [...order.slice(0, 2).map(one), "…", one(order.at(-1))] : order.map(one), part = plan.client_slots.filter((n) => n > 0).length;
    tell("who", `${part.toLocaleString("en")} of ${names.length.toLocaleString("en")} client${names.length === 1 ? "" : "s"}`, `${people.rounds.toLocaleString("en")} rounds, ${plan.slots.toLocaleString("en")} client-rounds: ${shown.join(", ")}.${people.window_only ? ` ${people.window_only.toLocaleString("en")} train${people.window_only === 1 ? "s" : ""} only in the fine-tuning window.` : ""}`);
  }

  totals(plan) {
    const { savings } = plan;
    fill($("totals"), [
      ["Emissions", `${kilograms(plan.emissions_kg)} kg of ${kilograms(plan.budget_kg)} (${percent(plan.emissions_kg / plan.budget_kg)})`],
      ["of which idle, server", `${kilograms(plan.idle_kg)}, ${kilograms(plan.server_kg)} kg`],
      ["network, evaluation", `${plan.network_counted ? kilograms(plan.network_kg) : "not counted"}, ${kilograms(plan.evaluation_kg)} kg`],
      ...(plan.startup_kg === undefined ? [] : [["starts", `${kilograms(plan.startup_kg)} kg`]]),
      ...(plan.money === undefined ? [] : [["Price of electricity", `${plan.money.toFixed(2)}${plan.budget_money === null ? "" : ` of ${plan.budget_money.toFixed(2)}`} ${printable(plan.currency)}`]]),
      ["Client-slots", plan.slots.toLocaleString("en")],
      ["Ends", plan.ends_at && this.problem.start ? `${slotTime(this.problem, this.problem.settings.rounds + plan.end)}` : `slot ${plan.window[1]}`],
      ["Objective", figure(plan.objective, 6)],
      ["Gap", plan.gap <= 1e-9 ? `${figure(plan.gap, 2)} (optimal)` : figure(plan.gap, 2)],
      ["Same work without slack", `${kilograms(savings.without_kg)} kg`],
      ["Saved by slack", `${kilograms(savings.saved_kg)} kg (${percent(savings.share)})`],
      ...(plan.no_slack ? [["Budget without slack", plan.no_slack.rounds ? `pays ${plan.no_slack.rounds} rounds of all clients` : "pays no round of all clients"]] : []),
    ]);
  }

  metrics(plan) {
    const m = plan.metrics;
    const never = m.never_count ? `${m.never_count}: ${m.never.map(printable).join(", ")}${m.never_count > m.never.length ? ", …" : ""}` : "none";
    fill($("metrics"), [
      ["Heterogeneity ρ_H", figure(m.rho_h)], ["Bias of FedAvg (TV)", figure(m.tv_distance)], ["Correlation in time ρ_T", figure(m.rho_t)],
      ["between clients ρ_S", figure(m.rho_s)], ["joint ρ_TS", figure(m.rho_ts)], ["Effective updates", figure(m.effective_updates)],
      ["Longest absence", `${m.longest_absence} slots`], ["Never train before the window", never],
      ["Slots with one client", percent(m.lone_slots)],
    ]);
  }

  drawFront(front, plan) {
    const points = front.points.map((p) => [p.budget_kg, p.objective]);
    this.front = [front, plan];
    this.curve.show({ series: [{ name: `at s = ${front.end}`, points, kind: "c0", dots: true }], here: [plan.budget_kg, plan.objective], x: "budget, kg CO2e", y: "objective" });
    $("front-note").textContent = `Every point is ${front.proved ? "the best schedule" : "a good schedule (greedy)"} for its budget at the end time s = ${front.end}; the ring is the displayed plan.`;
    $("front").classList.remove("stale");
  }

  rows() {
    const { clients, zones, intensity_g_per_kwh } = this.problem, wanted = $("filter").value.trim().toLowerCase();
    let rows = [...clients.name.keys()];
    const has = (text) => text.toLowerCase().includes(wanted), exact = wanted.startsWith(ONE_ZONE) && wanted.slice(ONE_ZONE.length);
    if (wanted) rows = rows.filter((c) => { const zone = zones[clients.zone[c]]; return exact ? zone.toLowerCase() === exact : has(clients.name[c]) || has(zone); });
    const mean = (this.means ??= intensity_g_per_kwh.map((line) => line.reduce((a, b) => a + b, 0) / line.length));
    const keys = { zone: (c) => clients.zone[c], clean: (c) => mean[clients.zone[c]], slots: (c) => -(this.plan?.client_slots[c] ?? 0) };
    const key = keys[$("order").value];
    if (key) rows = rows.map((c) => [key(c), c]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((pair) => pair[1]);
    this.groups = new Map();
    if (!$("group").checked) return rows;
    for (const c of rows) { const g = clients.zone[c]; if (!this.groups.has(g)) this.groups.set(g, []); this.groups.get(g).push(c); }
    return [...this.groups].flatMap(([g, members]) => [~g, ...(this.opened.has(g) || wanted ? members : [])]);
  }

  toggle(g) {
    this.opened[this.opened.has(g) ? "delete" : "add"](g);
    this.draw();
    this.noted();
  }

  /** Return how many of a zone's clients train in a slot. */
  training(g, slot) { return this.bits ? this.groups.get(g).reduce((sum, c) => sum + this.bits.has(c, slot), 0) : 0; }

  tellZone(g, slot) {
    const { problem } = this, members = this.groups.get(g), train = this.training(g, slot);
    return [`${printable(problem.zones[g])}, ${slotTime(problem, slot)}`, `${Math.round(problem.intensity_g_per_kwh[g][slot])} g/kWh`, `${train} of ${members.length} client${members.length === 1 ? "" : "s"} train${train === 1 ? "s" : ""}. Click the name, or press Enter, to ${this.opened.has(g) ? "close" : "open"} the zone.`];
  }

  draw() {
    if (!this.problem) return;
    for (const id of ["schedule", "hours", "front"]) $(`${id}-export`).hidden = !this.plan;
    const { problem, bits, available } = this, { clients } = problem;
    const shades = (this.shades ??= gridShades(problem)), look = gridColours();
    const slots = problem.settings.rounds + this.set.slack, stop = this.plan ? this.plan.window[1] : slots;
    const line = new Uint8Array(slots);
    const grouped = $("group").checked;
    const keys = [[look.TRAINS, "trains"], ...(grouped ? [[look.PARTLY + 3, "part of a zone's clients train"]] : []), [4, "does not train, lower intensity"], [look.TRAINS - 4, "higher intensity"], [look.CANNOT, "cannot train", "cannot"], [look.OVER, "after the end"], ["window", "fine-tuning window"]];
    legend($("plan-legend"), [["trains", "trains"], ...(grouped ? [["partly", "part of a zone's clients train"]] : []), ["scale", "does not train; more orange: higher intensity"], ["cannot", "cannot train"], ["over", "after the end"], ["window", "fine-tuning window"], ...(this.largest == null ? [] : [["largest", "end with the largest objective"]])]);
    const told = this.plan && ((row) => this.columns(row)), zoneOf = (row) => (row < 0 ? ~row : clients.zone[row]);
    const paintZone = (g) => {
      line.set(shades[g].shade.subarray(0, slots));
      const members = this.groups.get(g);
      for (let slot = 0; slot < slots; slot++) {
        const share = slot < stop ? this.training(g, slot) / members.length : 0;
        if (slot >= stop) line[slot] = look.OVER;
        else if (share) line[slot] = share === 1 ? look.TRAINS : look.PARTLY + Math.floor(share * (look.PARTS - 1));
        else if (!members.some((c) => available.has(clients.mask[c], slot))) line[slot] = look.CANNOT;
      }
      return line;
    };
    this.grid.show({
      problem, slots, rows: this.rows(), labels: clients.name, columns: told, groups: clients.zone.map((z) => problem.zones[z]), colours: look.colours, keys,
      window: this.plan ? this.plan.window : [slots, slots], largest: this.largest,
      grouped, group: (g, narrow) => `${this.opened.has(g) ? "▾" : "▸"} ${problem.zones[g]}${narrow ? "" : ` (${this.groups.get(g).length})`}`, toggle: (g) => this.toggle(g),
      paint: (client) => {
        if (client < 0) return paintZone(~client);
        line.set(shades[clients.zone[client]].shade.subarray(0, slots));
        const mask = clients.mask[client];
        for (let slot = 0; slot < slots; slot++) {
          if (slot >= stop) line[slot] = look.OVER;
          else if (bits?.has(client, slot)) line[slot] = look.TRAINS;
          else if (!available.has(mask, slot)) line[slot] = look.CANNOT;
        }
        return line;
      },
      skyline: (row) => shades[zoneOf(row)].skyline,
      cannot: (row, slot) => row >= 0 && slot < stop && !available.has(clients.mask[row], slot),
    });
    this.hours.soon(problem, bits, slots, this.plan);
  }

  /** Return slots, kg and mean intensity while it trains, of a client or a zone. */
  columns(row) {
    if (!this.plan) return ["", "", ""]; // while another source opens
    const { plan } = this, { slots, kg, g_per_kwh } = row < 0 ? this.sums(~row) : { slots: plan.client_slots[row], kg: plan.client_kg[row], g_per_kwh: plan.client_g_per_kwh[row] };
    return [slots.toLocaleString("en"), kilograms(Number(kg.toPrecision(3))), g_per_kwh == null ? "–" : String(Math.round(g_per_kwh))];
  }

  sums(g) {
    const { plan, problem } = this, found = { slots: 0, kg: 0, kwh: 0, grams: 0 };
    for (const c of this.groups.get(g)) { const kwh = plan.client_slots[c] * problem.clients.energy_kwh[c]; found.slots += plan.client_slots[c]; found.kg += plan.client_kg[c]; found.kwh += kwh; found.grams += kwh * (plan.client_g_per_kwh[c] ?? 0); }
    return { ...found, g_per_kwh: found.kwh ? found.grams / found.kwh : null };
  }

  async write() {
    const { toml } = await ask("/api/scenario", this.query({ end: this.set.end }));
    $("toml").value = toml;
    return toml;
  }

  async copy() {
    try {
      const toml = await this.write();
      $("toml-box").open = true;
      try {
        await navigator.clipboard.writeText(toml);
        $("done").textContent = "Copied. Save it as scenario.toml.";
      } catch { // browsers block the clipboard off the loopback address
        $("toml").focus();
        $("toml").select();
        $("done").textContent = "Selected below: press Ctrl-C.";
      }
    } catch (error) { showTrouble(error); }
  }
}
