// The Run view: follows a run; the server sends an event for every change.
import { $, ask, el, fill, kilograms, legend, local, metricName, onTheme, percent, printable, scored, scoreTick, showTrouble, slotTime, unpacked } from "./base.js";
import { Grid, gridColours, gridShades } from "./grid.js";
import { lineChart } from "./chart.js";

const MOST_NAMES = 12;

/** Return the clients whose number of slots a re-plan changed, as text. */
const changes = (found) => {
  const moved = Object.entries(found).map(([name, [then, now]]) => `${printable(name)} ${then} → ${now}`);
  if (!moved.length) return "No client's number of slots changed.";
  return `Remaining slots: ${moved.slice(0, MOST_NAMES).join(", ")}${moved.length > MOST_NAMES ? ` and ${moved.length - MOST_NAMES} more` : ""}.`;
};

export class RunView {
  constructor() {
    this.grid = new Grid($("realised"), "Planned and realised, clients by hour", (client, slot) => this.tell(client, slot));
    $("runs").addEventListener("change", () => this.open($("runs").value));
    onTheme(() => this.draw());
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.unfollow(); else this.follow(); });
    legend($("run-legend"), [["trains", "trained as planned"], ["pending", "planned, not reached yet"], ["missed", "planned, did not train"], ["extra", "trained, not planned"], ["scale", "neither; more orange: higher intensity"]]);
  }

  async open(run) {
    this.close();
    this.state = null;
    this.rounds = [];
    $("run-cards").hidden = $("realised").hidden = $("run-progress").hidden = !run;
    $("run-kind").textContent = "";
    if (!run) {
      $("run-status").textContent = "This folder has no run yet. Start one with: slackwater train plan.json --out DIR";
      return;
    }
    try {
      const [{ fixed }, problem] = await Promise.all([ask("/api/run", { run }), ask("/api/problem", { source: run })]);
      if ($("runs").value !== run) return;
      Object.assign(this, { fixed, problem, available: unpacked(problem.available), shades: gridShades(problem) });
      showTrouble(null);
    } catch (error) {
      showTrouble(error);
      $("run-cards").hidden = $("realised").hidden = $("run-progress").hidden = true;
      $("run-status").textContent = "";
      this.retry = setTimeout(() => this.open(run), 5000); // a run that is just starting becomes readable
      return;
    }
    this.run = run;
    this.follow();
  }

  /** Follow the run, unless the tab is hidden: a browser allows only six connections to a server. */
  follow() {
    if (!this.run || this.stream || document.hidden) return;
    this.stream = new EventSource(local(`/api/events?run=${encodeURIComponent(this.run)}`));
    this.stream.addEventListener("state", (event) => { showTrouble(null); this.take(JSON.parse(event.data)); });
    this.stream.addEventListener("trouble", (event) => showTrouble(new Error(JSON.parse(event.data).error)));
    this.stream.addEventListener("error", () => { $("live").textContent = "Disconnected; reconnecting."; });
  }

  unfollow() {
    this.stream?.close();
    this.stream = null;
  }

  close() {
    clearTimeout(this.retry);
    this.unfollow();
    this.run = null;
  }

  /** Say in the tab's title, and by a notification if allowed, that the run has ended. */
  ended(state, was) {
    if (was !== "running" || state.status === "running") return;
    document.title = `${state.sentence.split(/[.:;]/)[0]} · Slackwater`;
    if (document.hidden && window.Notification?.permission === "granted") new Notification("Slackwater", { body: state.sentence });
  }

  take(state) {
    if (state.since === 0) this.rounds = [];
    this.rounds = this.rounds.slice(0, state.since).concat(state.rounds);
    const was = this.state?.status;
    this.state = state;
    if (state.status !== "running") this.unfollow();
    this.ended(state, was);
    $("live").textContent = state.status === "running" ? (state.quiet ? "No change for two minutes." : "Following the run.") : "";
    // A re-planned run, or one by an online policy, has no fixed number of rounds: its progress is counted in slots.
    const anew = state.replans.length > 0 || !state.rounds_planned;
    const share = state.status === "done" ? 1 : anew ? (state.last_slot + 1) / state.slots : state.rounds_done / state.rounds_planned;
    // "Planned" refers to the plan in force when a slot was decided; without re-plans that is the first plan.
    const force = state.in_force;
    this.slots = force ? state.slots : this.fixed.slots;
    this.bits = unpacked((force ?? this.fixed.plan).schedule);
    this.window = force ? force.window : this.fixed.window;
    this.counted = anew ? `${state.rounds_done}` : `${state.rounds_done} of ${state.rounds_planned}`;
    $("run-progress").value = share;
    const last = this.rounds.filter((r) => r.score != null).at(-1);
    $("run-kind").textContent = this.fixed.about;
    $("run-kind").className = `kind ${state.kind}`;
    $("run-status").textContent = `${state.sentence} Round ${this.counted}, ${kilograms(state.spent_kg)} of ${kilograms(state.budget_kg)} kg spent${last ? `, ${printable(state.metric.name)} ${scored(state.metric, last.score)}` : ""}.${state.quiet ? " Its status is running, but nothing was written for two minutes. If it was killed, continue with: slackwater resume." : ""}${state.shortened ? " Only the first rounds are shown." : ""}${this.fixed.synthetic ? " Synthetic intensity." : ""}`;
    this.draw();
  }

  draw() {
    if (!this.state || $("run").hidden) return;
    this.charts();
    this.panels();
    this.cells();
  }

  charts() {
    const { metric } = this.state, points = this.rounds.filter((r) => r.score != null).map((r) => [r.spent_kg, r.score]);
    $("score-title").textContent = `${printable(metric.name[0].toUpperCase() + metric.name.slice(1))} by kg CO2e`;
    lineChart($("accuracy"), { series: [{ name: printable(metric.name), points, kind: "c0", dots: true }], x: "kg CO2e spent", y: metricName(metric), yFormat: scoreTick(metric) });
    const { budget_kg: budget, expected_kg, first_plan_kg: first, in_force: force, decided_slots: decided, last_slot: done } = this.state;
    const { planned_kg: planned, busy_slots: busy } = this.fixed, { slots } = this, top = budget ?? planned.at(-1);
    const left = (sums, at) => [[0, top], ...at.map((slot) => [slot + 1, top - sums[slot]])];
    const real = [[0, top], ...this.rounds.map((r) => [r.slot + 1, top - r.spent_kg])], here = real.at(-1)[1];
    const from = done >= 0 ? planned[Math.min(done, planned.length - 1)] : 0;
    const series = [{ name: "realised", points: real, kind: "c1" }];
    if (!force) series.unshift({ name: "planned", points: left(planned, busy), kind: "quiet", under: true });
    else {
      if (force.planned_kg) series.unshift({ name: "planned (plan in force)", points: left(force.planned_kg, [...force.planned_kg.keys()]), kind: "quiet", under: true });
      series.push({ name: "first plan", points: left(planned, busy), kind: "c2", dashed: true });
    }
    const rest = force ? force.rest_kg.map((kg, at) => [decided + at + 1, top - this.state.spent_kg - kg]) : busy.filter((slot) => slot > done).map((slot) => [slot + 1, here - (planned[slot] - from)]);
    if (this.state.status !== "done") series.push({ name: "expected: the rest as planned", points: [real.at(-1), ...rest], kind: "c1", dashed: true });
    const reserve = this.state.status !== "done" ? this.state.replans[0]?.reserve_kg : null;
    if (reserve) series.push({ name: "reserve", points: [[done + 1, reserve], [slots, reserve]], kind: "c0", dashed: true });
    lineChart($("burn"), { series, x: "slot", y: "kg remaining", zero: true, xFormat: (v) => (Number.isInteger(v) && v <= slots ? String(v) : "") });
    const off = this.state.off_plan_kg;
    const way = off == null ? "" : Math.abs(off) < 1e-9 * (budget ?? 1) ? " So far as planned." : ` So far ${kilograms(Math.abs(off))} kg ${off > 0 ? "more" : "less"} than planned.`;
    const reference = this.state.replans.length ? ` The first plan expected ${kilograms(first)} kg.` : "";
    $("burn-note").textContent = `Expected at the end: ${kilograms(expected_kg)} kg${budget ? ` of ${kilograms(budget)}` : ""}.${way}${reference}`;
  }

  panels() {
    const { state } = this, names = (one) => one.clients.slice(0, MOST_NAMES).map((c) => printable(this.fixed.clients[c])).join(", ") + (one.count > MOST_NAMES ? ` and ${one.count - MOST_NAMES} more` : "");
    const line = (one) => (one ? `slot ${one.slot} (${slotTime(this.problem, one.slot)}${one.in_window ? ", fine-tuning" : ""}): ${names(one)}` : "no client");
    fill($("upcoming"), [["Now", state.status === "running" ? line(state.now) : "not running"], ["Next", line(state.next)], ["Rounds", this.counted], ["Seconds a round", this.rounds.length ? (this.rounds.reduce((a, r) => a + r.seconds, 0) / this.rounds.length).toFixed(2) : "–"]]);
    const item = (event) => el("li", { class: event.level }, el("time", {}, `${event.at.slice(0, 19).replace("T", " ")}${event.slot == null ? "" : `, slot ${event.slot}`}`), printable(event.message));
    const list = (box, items, none) => box.replaceChildren(...(items.length ? items : [el("li", {}, none)]));
    const replanned = (one) => item({ level: "info", at: one.at ?? "", slot: one.slot, message: `Re-planned: ${one.reason}. ${changes(one.changes)} Planned ${kilograms(one.planned_kg)} kg in total, ${kilograms(one.reserve_kg)} kg in reserve.` });
    const missed = this.missed(), outcomes = Object.entries(state.outcomes).filter(([outcome]) => outcome !== "done" && outcome !== "running");
    for (const one of state.quarantined) missed.push(el("li", { class: "warning" }, `${one.client} reported ${one.reported_kwh} kWh in slot ${one.slot}, more than is possible; ${one.bound_kwh} kWh are charged. Confirm it with: slackwater confirm`));
    if (outcomes.length) missed.push(el("li", { class: "warning" }, `Results of the requested clients: ${outcomes.map(([outcome, count]) => `${count} ${outcome}`).join(", ")}; ${state.outcomes.done ?? 0} done.`));
    list($("failures"), [...missed, ...state.events.filter((event) => event.level !== "info").map(item)], "No failures.");
    list($("replans"), state.replans.map(replanned), "No re-plan: the run follows its first plan.");
    const { by_intensity: kinds, settled, unplanned } = state.charges, lines = [], causes = Object.entries(state.figures.by_cause_kg);
    if (causes.length > 1) lines.push(el("li", {}, `By cause: ${causes.map(([cause, kg]) => `${cause} ${kilograms(kg)} kg`).join(", ")}.`));
    if (state.figures.unsettled_kg) lines.push(el("li", {}, `${kilograms(state.figures.unsettled_kg)} kg are not settled yet: they are charged at an upper bound or a forecast.`));
    for (const [kind, { lines: count, kg }] of Object.entries(kinds)) lines.push(el("li", {}, `${count} ledger lines at ${kind} intensity, ${kilograms(kg)} kg.`));
    for (const [kind, { lines: count, kg }] of Object.entries(settled)) lines.push(el("li", {}, `${count} ${kind}${count === 1 ? "" : "s"}, in total ${kg >= 0 ? "+" : "−"}${kilograms(Math.abs(kg))} kg.`));
    if (unplanned.lines) lines.push(el("li", { class: "warning" }, `${unplanned.lines} unplanned ledger lines, ${kilograms(unplanned.kg)} kg.`));
    const last = state.replans[0];
    lines.push(el("li", {}, last?.reserve_kg != null ? `${kilograms(last.reserve_kg)} kg in reserve since slot ${last.slot}, for forecast errors.` : "This run records no reserve."));
    if (!kinds.forecast) lines.push(el("li", {}, "No charge is based on a forecast."));
    list($("forecast"), lines, "");
  }

  missed() {
    const { missed } = this.state;
    return missed ? [el("li", { class: "warning" }, `${missed} planned client-slots were missed.`)] : [];
  }

  trained() {
    const rows = this.fixed.clients.map(() => new Uint8Array(this.slots));
    for (const round of this.rounds) for (const client of round.clients) if (round.slot < this.slots) rows[client][round.slot] = 1;
    return rows;
  }

  cells() {
    const { problem, bits, shades, available } = this, { clients } = problem, look = gridColours(), { slots } = this, done = this.state.last_slot;
    this.did = this.trained();
    const order = [...clients.name.keys()];
    if (order.length > 100) order.sort((a, b) => clients.zone[a] - clients.zone[b] || a - b);
    const line = new Uint8Array(slots);
    this.grid.show({
      problem, slots, rows: order, labels: clients.name, groups: clients.zone.map((z) => problem.zones[z]), colours: look.colours, window: this.window,
      paint: (client) => {
        line.set(shades[clients.zone[client]].shade.subarray(0, slots));
        for (let slot = 0; slot < slots; slot++) {
          const planned = bits.has(client, slot), trained = this.did[client][slot];
          if (trained) line[slot] = planned ? look.TRAINS : look.EXTRA;
          else if (planned) line[slot] = slot <= done ? look.MISSED : look.PENDING;
          else if (!available.has(clients.mask[client], slot)) line[slot] = look.CANNOT;
        }
        return line;
      },
      skyline: (client) => shades[clients.zone[client]].skyline,
      cannot: (client, slot) => !available.has(clients.mask[client], slot),
    });
  }

  tell(client, slot) {
    const { clients } = this.problem, zone = clients.zone[client], intensity = this.problem.intensity_g_per_kwh[zone][slot];
    const planned = this.bits.has(client, slot), trained = this.did[client][slot];
    const what = trained ? (planned ? "Trained as planned." : "Trained, not planned.") : planned ? (slot <= this.state.last_slot ? "Planned, did not train." : "Planned, not reached yet.") : "Not planned.";
    return [`${printable(clients.name[client])} (${printable(this.problem.zones[zone])}), ${slotTime(this.problem, slot)}`, `${Math.round(intensity)} g/kWh · ${kilograms(intensity / 1000 * clients.energy_kwh[client])} kg`, what];
  }
}
