// The Plan view. A moving slider plans for the displayed end time; when it rests, the search covers all end times.
import { $, ask, csv, download, el, figure, fill, kilograms, legend, onTheme, percent, printable, showTrouble, slotTime, unpacked } from "./base.js";
import { Grid, gridColours, gridShades } from "./grid.js";
import { HourCharts } from "./hours.js";
import { lineChart } from "./chart.js";
import { tellCell } from "./why.js";

const REST_MS = 220;
const ALPHAS = ["max-min", "log", 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1];
const page = Math.random().toString(36).slice(2) + Date.now().toString(36);

export class PlanView {
  constructor(pin, noted = () => {}) {
    this.noted = noted;
    this.number = 0;
    this.grid = new Grid($("schedule"), "Schedule of clients by hour", (client, slot) => tellCell(this.problem, this.plan, this.bits, this.available, client, slot));
    for (const id of ["budget", "slack", "alpha", "fine-tune", "end"]) $(id).addEventListener("input", (event) => this.moved(id, event));
    $("budget-kg").addEventListener("change", () => { const kg = Number($("budget-kg").value); if (kg > 0) { this.set.budget_kg = kg; $("budget").value = this.fromBudget(kg); this.changed(); } });
    $("end-auto").addEventListener("change", () => { $("end").disabled = false; this.set.end = $("end-auto").checked ? null : Number($("end").value); this.changed(); });
    this.hours = new HourCharts($("hours"), this.grid, () => this.noted());
    $("finish").addEventListener("change", () => this.finish());
    $("zoom-out").addEventListener("click", () => this.hours.zoom(null));
    $("save-png").addEventListener("click", () => this.grid.canvas.toBlob((blob) => download("schedule.png", blob)));
    $("save-csv").addEventListener("click", () => this.table());
    $("optimiser").addEventListener("toggle", () => { if ($("optimiser").open && this.front) this.drawFront(...this.front); });
    $("sliders").addEventListener("submit", (event) => event.preventDefault());
    $("filter").addEventListener("input", () => { this.draw(); this.noted(); });
    $("order").addEventListener("change", () => { this.draw(); this.noted(); });
    $("reset").addEventListener("click", () => this.reset());
    $("copy").addEventListener("click", () => this.copy());
    $("pin").addEventListener("click", () => { if (this.plan?.schedule) { pin(this.problem, this.plan, this.set); $("done").textContent = "Pinned. See the Compare view."; } });
    $("toml-box").addEventListener("toggle", () => { if ($("toml-box").open) this.write().catch(showTrouble); });
    onTheme(() => { this.shades = null; this.draw(); });
    legend($("plan-legend"), [["trains", "trains"], ["scale", "does not train; more orange: higher intensity"], ["cannot", "cannot train"], ["over", "after the end"], ["window", "fine-tuning window"]]);
  }

  async open(source, wanted = null) {
    this.stop();
    this.plan = null;
    this.problem = await ask("/api/problem", { source });
    this.available = unpacked(this.problem.available);
    this.shades = null;
    this.near = null;
    if (this.problem.clients.name.length > 100) $("order").value = "zone";
    this.hours.reset();
    this.reset(wanted);
  }

  reset(wanted = null) {
    const { settings, most_slack } = this.problem;
    this.set = { budget_kg: settings.budget_kg, slack: settings.slack, alpha: settings.alpha, fine_tune: settings.fine_tune, end: null };
    this.alphas = [...ALPHAS];
    if (!this.alphas.includes(settings.alpha)) {
      const at = typeof settings.alpha === "number" ? this.alphas.findIndex((a) => typeof a === "number" && a > settings.alpha) : 0;
      this.alphas.splice(at < 0 ? this.alphas.length : at, 0, settings.alpha);
    }
    this.least = settings.budget_kg / 30;
    this.most = Math.max(settings.budget_kg * 1.5, Math.min(this.problem.everything_kg, settings.budget_kg * 30));
    $("slack").max = most_slack;
    $("slack").value = settings.slack;
    $("alpha").max = this.alphas.length - 1;
    $("alpha").value = this.alphas.indexOf(settings.alpha);
    $("fine-tune").max = Math.max(settings.fine_tune, Math.min(24, settings.rounds));
    $("fine-tune").value = settings.fine_tune;
    $("budget").value = this.fromBudget(settings.budget_kg);
    $("end-auto").checked = true;
    if (wanted) this.restore(wanted);
    this.changed();
  }

  /** Take the settings of a shared link, as far as they are possible here. */
  restore(wanted) {
    const whole = (key, most) => { const value = Number(wanted.get(key)); return wanted.has(key) && Number.isInteger(value) && value >= 0 && value <= most ? value : null; };
    const kg = Number(wanted.get("budget_kg")), alpha = this.alphas.find((one) => String(one) === wanted.get("alpha"));
    if (kg > 0 && Number.isFinite(kg)) { this.set.budget_kg = kg; $("budget").value = this.fromBudget(kg); }
    if (alpha !== undefined) { this.set.alpha = alpha; $("alpha").value = this.alphas.indexOf(alpha); }
    const slack = whole("slack", this.problem.most_slack), tune = whole("fine_tune", Number($("fine-tune").max));
    if (slack != null) { this.set.slack = slack; $("slack").value = slack; }
    if (tune != null) { this.set.fine_tune = tune; $("fine-tune").value = tune; }
    $("end").max = this.set.slack;
    const end = whole("end", this.set.slack);
    if (end != null) { this.set.end = end; $("end").value = end; $("end-auto").checked = false; }
    $("filter").value = (wanted.get("filter") ?? "").slice(0, 80);
    if ([...$("order").options].some((one) => one.value === wanted.get("order"))) $("order").value = wanted.get("order");
    const zoom = (wanted.get("zoom") ?? "").split("-").map(Number), slots = this.problem.settings.rounds + this.set.slack;
    if (zoom.length === 2 && zoom.every(Number.isInteger) && zoom[0] >= 0 && zoom[1] > zoom[0] && zoom[1] <= slots) this.grid.range = zoom;
  }

  /** Return what a shared link restores; settings as in the scenario are left out. */
  link() {
    const known = this.problem.settings, fields = {};
    for (const key of ["budget_kg", "slack", "alpha", "fine_tune"]) if (this.set[key] !== known[key]) fields[key] = this.set[key];
    if (this.set.end != null) fields.end = this.set.end;
    if ($("filter").value) fields.filter = $("filter").value;
    if ($("order").value !== "given") fields.order = $("order").value;
    if (this.grid.range) fields.zoom = this.grid.range.join("-");
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

  /** Download who trains when, a row for each client. */
  table() {
    if (!this.plan) return;
    const { clients, zones } = this.problem, stop = this.plan.window[1], times = [...Array(stop).keys()];
    download("schedule.csv", csv([["client", "zone", "slots", "kg", ...times.map((slot) => slotTime(this.problem, slot))],
      ...clients.name.map((name, c) => [name, zones[clients.zone[c]], this.plan.client_slots[c], this.plan.client_kg[c], ...times.map((slot) => this.bits.has(c, slot))])]));
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
    if (id === "end") { this.set.end = value; $("end-auto").checked = false; }
    this.changed();
  }

  changed() {
    const { set } = this;
    $("done").textContent = "";
    if (set.end != null) set.end = Math.min(set.end, set.slack);
    $("end").max = set.slack;
    $("budget-kg").value = set.budget_kg;
    $("slack-out").value = `${set.slack} slots`;
    const { start, slot_minutes, settings, most_slack } = this.problem;
    const moment = (slots) => new Date(Date.parse(start) + slots * slot_minutes * 60000).toISOString().slice(0, 16);
    $("finish").disabled = !start;
    if (start) Object.assign($("finish"), { value: moment(settings.rounds + set.slack), min: moment(settings.rounds), max: moment(settings.rounds + most_slack) });
    $("alpha-out").value = String(set.alpha);
    this.noted();
    $("fine-tune-out").value = `${set.fine_tune} slot${set.fine_tune === 1 ? "" : "s"}`;
    $("alpha").setAttribute("aria-valuetext", String(set.alpha));
    $("budget").setAttribute("aria-valuetext", `${set.budget_kg} kg`);
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

  query(more = {}) {
    return { source: this.problem.source, ...this.set, end: this.set.end ?? "auto", page, number: this.number, ...more };
  }

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
          this.show(plan);
          this.report(began, number);
        } else if (plan) this.status(plan.message, "waiting");
      } while (number !== this.number);
      showTrouble(null);
      this.resting = setTimeout(() => this.best(), REST_MS);
    } catch (error) {
      showTrouble(error);
    } finally {
      this.asking = false;
    }
  }

  /** For the benchmark: time from the slider's event to the frame after drawing. */
  report(began, number) {
    if (began == null) return;
    requestAnimationFrame(() => setTimeout(() => document.dispatchEvent(new CustomEvent("slackwater:drawn", { detail: { number, ms: performance.now() - began } }))));
  }

  async best() {
    const number = this.number;
    this.longer = new AbortController();
    this.waitingFor(true);
    try {
      const plan = this.plan?.all_ends && this.plan.number === number && this.plan.metrics ? this.plan : await ask("/api/plan/best", this.query(), this.longer.signal);
      if (number !== this.number) return;
      this.show(plan);
      document.dispatchEvent(new CustomEvent("slackwater:settled", { detail: { number } }));
      if (!plan.schedule) return;
      const front = await ask("/api/front", this.query({ end: plan.end }), this.longer.signal);
      if (number === this.number) this.drawFront(front, plan);
    } catch (error) {
      if (!error.outdated) { this.waitingFor(false); showTrouble(error); }
    }
  }

  show(plan) {
    const was = this.plan;
    this.plan = plan.schedule ? plan : null;
    if (!plan.schedule) {
      this.status(plan.message, "infeasible");
      this.bits = null;
      this.tiles(null);
      for (const id of ["totals", "metrics"]) $(id).replaceChildren();
      $("front").replaceChildren();
      $("front-note").textContent = "";
      this.plan = null;
      this.draw();
      return;
    }
    this.bits = unpacked(plan.schedule);
    this.near = plan.end;
    if (this.set.end == null) $("end").value = plan.end;
    const ends = this.problem.start ? ` · ${slotTime(this.problem, this.problem.settings.rounds + plan.end).replace(/ \d{4},| UTC/g, "")}` : "";
    $("end-out").value = `s = ${plan.end}${ends}`;
    this.draw();
    this.tiles(plan);
    this.totals(plan);
    const settled = "metrics" in plan;
    this.waitingFor(!settled);
    if (settled) this.metrics(plan);
    const used = `${kilograms(plan.emissions_kg)} of ${kilograms(plan.budget_kg)} kg`;
    if (settled) this.status(`${used}. ${plan.message}${plan.all_ends ? ` Best of all end times: s = ${plan.end}.` : ` For s = ${plan.end}.`}`, "");
    else if (!was || !this.settledText) this.status(`${used}. Best schedule for s = ${plan.end}; checking the other end times.`, "waiting");
  }

  status(text, kind) {
    $("plan-status").textContent = text;
    $("plan-status").className = `status ${kind}`;
  }

  waitingFor(yes) {
    for (const id of ["metrics", "front"]) $(id).classList.toggle("stale", yes);
  }

  /** Answer the four questions: what is saved, when it ends, what quality to expect, who takes part. */
  tiles(plan) {
    const tell = (id, big, note) => { $(`tile-${id}`).textContent = big; $(`tile-${id}-note`).textContent = note; };
    if (!plan) { for (const id of ["saved", "ends", "quality", "who"]) tell(id, "–", id === "saved" ? "No schedule fits these settings." : ""); return; }
    const { savings, settings } = plan, names = this.problem.clients.name, trains = plan.client_slots.map((n, c) => [n, c]).filter(([n]) => n > 0).sort((a, b) => b[0] - a[0]);
    tell("saved", `${kilograms(savings.saved_kg)} kg (${percent(savings.share)})`, `${kilograms(plan.emissions_kg)} kg instead of ${kilograms(savings.without_kg)} kg for the same work without slack.`);
    const early = settings.slack - plan.end, hours = early * this.problem.slot_minutes / 60, length = hours >= 48 ? `${Number((hours / 24).toFixed(1))} days` : `${Number(hours.toFixed(1))} h`;
    const by = slotTime(this.problem, settings.rounds + settings.slack);
    tell("ends", slotTime(this.problem, settings.rounds + plan.end), early > 0 ? `${this.problem.start ? length : `${early} slots`} before the latest end, ${by}.` : `At the latest end allowed.`);
    const q = plan.tiles?.quality, m = plan.metrics;
    if (q?.remaining_error != null) {
      const band = (q.band ? `, band ${percent(q.band[0])} to ${percent(q.band[1])}` : "") + (q.without_slack_error != null ? `; the same budget without slack: ${percent(q.without_slack_error)}` : "");
      tell("quality", percent(q.remaining_error), q.calibrated ? `Predicted remaining error${band}.` : `Ranking score: predicted remaining error, not calibrated${band}. Lower is better.`);
    } else if (m) tell("quality", `${figure(m.effective_updates, 3)} updates`, `Effective updates, a ranking score that is not calibrated: higher is better.${m.never_count ? ` The model learns little from ${m.never_count} client${m.never_count === 1 ? "" : "s"}.` : ""}`);
    else tell("quality", "…", "follows when the best end time is known");
    const most = trains.slice(0, 3).map(([n, c]) => `${printable(names[c])} (${n})`).join(", ");
    tell("who", `${trains.length} of ${names.length} clients`, trains.length ? `${plan.slots.toLocaleString("en")} client-slots; most: ${most}.` : "");
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
    lineChart($("front"), { series: [{ name: `at s = ${front.end}`, points, kind: "c0", dots: true }], here: [plan.budget_kg, plan.objective], x: "budget, kg CO2e", y: "objective", height: 260 });
    $("front-note").textContent = `Every point is ${front.proved ? "the best schedule" : "a good schedule (greedy)"} for its budget at the end time s = ${front.end}; the ring is the displayed plan.`;
    $("front").classList.remove("stale");
  }

  rows() {
    const { clients, zones, intensity_g_per_kwh } = this.problem, wanted = $("filter").value.trim().toLowerCase();
    let rows = [...clients.name.keys()];
    if (wanted) rows = rows.filter((c) => clients.name[c].toLowerCase().includes(wanted) || zones[clients.zone[c]].toLowerCase().includes(wanted));
    const mean = intensity_g_per_kwh.map((line) => line.reduce((a, b) => a + b, 0) / line.length);
    const keys = { zone: (c) => clients.zone[c], clean: (c) => mean[clients.zone[c]], slots: (c) => -(this.plan?.client_slots[c] ?? 0) };
    const key = keys[$("order").value];
    return key ? rows.map((c) => [key(c), c]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((pair) => pair[1]) : rows;
  }

  draw() {
    if (!this.problem) return;
    const { problem, bits, available } = this, { clients } = problem;
    const shades = (this.shades ??= gridShades(problem)), look = gridColours();
    const slots = problem.settings.rounds + this.set.slack, stop = this.plan ? this.plan.window[1] : slots;
    const line = new Uint8Array(slots);
    const told = this.plan && ((client) => this.columns(client));
    this.grid.show({
      problem, slots, rows: this.rows(), labels: clients.name, columns: told, groups: clients.zone.map((z) => problem.zones[z]), colours: look.colours,
      window: this.plan ? this.plan.window : [slots, slots],
      paint: (client) => {
        line.set(shades[clients.zone[client]].shade.subarray(0, slots));
        const mask = clients.mask[client];
        for (let slot = 0; slot < slots; slot++) {
          if (slot >= stop) line[slot] = look.OVER;
          else if (bits?.has(client, slot)) line[slot] = look.TRAINS;
          else if (!available.has(mask, slot)) line[slot] = look.CANNOT;
        }
        return line;
      },
      skyline: (client) => shades[clients.zone[client]].skyline,
      cannot: (client, slot) => slot < stop && !available.has(clients.mask[client], slot),
    });
    this.hours.soon(problem, bits, slots);
  }

  /** Return slots, kg and mean intensity of the slots in which a client trains. */
  columns(client) {
    const { plan, problem } = this, slots = plan.client_slots[client], line = problem.intensity_g_per_kwh[problem.clients.zone[client]];
    let sum = 0;
    if (slots) for (let slot = 0; slot < plan.window[1]; slot++) if (this.bits.has(client, slot)) sum += line[slot];
    return [String(slots), kilograms(Number(plan.client_kg[client].toPrecision(3))), slots ? String(Math.round(sum / slots)) : "–"];
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
