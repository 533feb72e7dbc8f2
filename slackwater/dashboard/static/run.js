// The Run view: follows a run; the server sends an event for every change.
import { $, ask, el, figure, fill, kilograms, legend, local, metricName, onTheme, percent, printable, scored, scoreTick, showTrouble, slotTime, unpacked } from "./base.js";
import { exports } from "./export.js";
import { Grid, gridColours, gridShades } from "./grid.js";
import { Curves } from "./curves.js";

const MOST_NAMES = 12, AGAIN_MS = 5000, RESUMED_MS = 20000, HIDDEN_MS = 10000, BASELINE_MS = 2000;
const CURVES = ["accuracy", "loss", "burn"];

/** Return seconds as "2 d 3 h", "3 h 20 min", "4 min 5 s". */
function duration(seconds) {
  const s = Math.max(0, Math.round(seconds)), parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "min"], [s % 60, "s"]];
  const first = Math.max(0, parts.findIndex(([n]) => n));
  return s ? parts.slice(first, first + 2).map(([n, unit]) => `${n} ${unit}`).join(" ") : "0 s";
}

/** Return a moment by the clock of a time zone; of this browser without one. */
function clock(at, timeZone) {
  try { return new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", timeZone }).format(at); } catch { return at.toISOString().slice(0, 16); }
}

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
    document.addEventListener("visibilitychange", () => { clearTimeout(this.retry); if (document.hidden) { this.unfollow(); this.glance(); } else this.follow(); });
    $("run-axis").addEventListener("change", () => this.draw());
    $("notify").hidden = !(window.Notification && window.isSecureContext);
    $("notify").addEventListener("click", async () => this.notifying($("notify").ariaPressed !== "true" && (await Notification.requestPermission()) === "granted"));
    let wished = null;
    try { wished = localStorage.getItem("slackwater-notify"); } catch { /* private windows have no storage */ }
    this.notifying(wished === "yes" && window.Notification?.permission === "granted");
    this.curves = Object.fromEntries(CURVES.map((id) => [id, new Curves($(id))]));
    const notes = () => [`${this.state.label}: ${$("run-status").textContent}`, $("run-kind").textContent];
    for (const id of CURVES) exports($(`${id}-export`), id, { notes, picture: () => this.state && this.curves[id].picture(), rows: () => this.state && this.table() });
    exports($("realised-export"), "realised", { notes, picture: () => this.state && this.grid.picture(), rows: () => this.state && this.schedule() });
    setInterval(() => this.countdown(), 1000);
    legend($("run-legend"), [["trains", "trained as planned"], ["pending", "planned, not reached yet"], ["missed", "planned, did not train"], ["extra", "trained, not planned"], ["superseded", "only in the first plan"], ["scale", "neither; more orange: higher intensity"]]);
  }

  notifying(yes) {
    $("notify").ariaPressed = String(yes);
    try { localStorage.setItem("slackwater-notify", yes ? "yes" : "no"); } catch { /* as above */ }
  }

  async open(run) {
    this.close();
    this.state = null;
    this.rounds = [];
    document.title = "Slackwater";
    this.shown(Boolean(run));
    $("run-report").href = local(`/api/report?run=${encodeURIComponent(run)}`);
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
      this.shown(false);
      $("run-status").textContent = "";
      this.retry = setTimeout(() => this.open(run), AGAIN_MS); // a run that is just starting becomes readable
      return;
    }
    this.run = run;
    this.follow();
  }

  shown(yes) {
    for (const id of ["run-tiles", "run-charts", "run-charts-note", "run-cards", "realised-title", "run-legend", "realised-export", "realised", "run-progress", "run-report"]) $(id).hidden = !yes;
  }

  /** Follow the run, unless the tab is hidden: a browser allows only six connections to a server. */
  follow() {
    if (!this.run || this.stream || document.hidden) return;
    clearTimeout(this.retry);
    const stream = this.stream = new EventSource(local(`/api/events?run=${encodeURIComponent(this.run)}`));
    const heard = () => { clearTimeout(this.lost); this.lost = null; };
    stream.addEventListener("state", (event) => { heard(); showTrouble(null); this.take(JSON.parse(event.data)); });
    stream.addEventListener("trouble", (event) => { heard(); showTrouble(new Error(JSON.parse(event.data).error)); });
    stream.addEventListener("error", () => {
      this.lost ??= setTimeout(() => { $("live").textContent = "Disconnected; reconnecting."; }, AGAIN_MS); // a browser with many pages asks again and again
      if (stream.readyState === EventSource.CLOSED && this.stream === stream) { this.unfollow(); this.retry = setTimeout(() => this.follow(), AGAIN_MS); }
    });
  }

  unfollow() {
    this.stream?.close();
    this.stream = null;
  }

  /** Ask now and then how the run stands while the tab is hidden, so that its title and a notification can tell. */
  async glance() {
    if (!this.run || !document.hidden || this.state?.status === "done") return;
    const { run } = this;
    try { const state = await ask("/api/run/brief", { run }); if (run === this.run && document.hidden) this.ended(state); } catch { /* the next look tells */ }
    if (run === this.run && document.hidden) this.retry = setTimeout(() => this.glance(), HIDDEN_MS);
  }

  close() {
    clearTimeout(this.retry);
    clearTimeout(this.lost);
    this.lost = null;
    this.unfollow();
    this.run = this.stands = null;
  }

  /** Say in the tab's title, and by a notification if wished for, that a run which was followed has ended. */
  ended(state) {
    const stands = state.gone ? "gone" : state.status, was = this.stands;
    this.stands = stands;
    if (stands === "running") document.title = "Slackwater";
    if (was !== "running" || stands === "running") return;
    const word = { gone: "Process gone", done: "Done", failed: "Failed", diverged: "Diverged", stopped: "Stopped" }[stands] ?? stands;
    document.title = `${word}: ${printable(state.label)} · Slackwater`;
    if ($("notify").ariaPressed === "true" && window.Notification?.permission === "granted") new Notification(`${word}: ${printable(state.label)}`, { body: state.sentence });
  }

  take(state) {
    if (state.since === 0) this.rounds = [];
    this.rounds = this.rounds.slice(0, state.since).concat(state.rounds);
    this.state = state;
    this.taken = Date.now();
    if (state.status !== "running") {
      this.unfollow(); // a stopped run may be resumed, and the baseline may still train
      if (state.status !== "done" || state.baseline?.trains) this.retry = setTimeout(() => this.follow(), state.baseline?.trains ? BASELINE_MS : RESUMED_MS);
    }
    this.ended(state);
    $("live").textContent = state.status === "running" && !state.gone ? "Following the run." : "";
    // A re-planned run, or one by an online policy, has no fixed number of rounds: its progress is counted in slots.
    const anew = state.replans.length > 0 || !state.rounds_planned;
    const share = state.status === "done" ? 1 : anew ? state.reached_slots / state.slots : state.rounds_done / state.rounds_planned;
    // "Planned" refers to the plan in force when a slot was decided; without re-plans that is the first plan.
    const force = state.in_force;
    this.slots = force ? state.slots : this.fixed.slots;
    this.bits = unpacked((force ?? this.fixed.plan).schedule);
    this.first = unpacked(this.fixed.plan.schedule);
    this.window = force ? force.window : this.fixed.window;
    this.counted = anew ? `${state.rounds_done}` : `${state.rounds_done} of ${state.rounds_planned}`;
    $("run-progress").value = share;
    const last = this.rounds.filter((r) => r.score != null).at(-1);
    $("run-kind").textContent = this.fixed.about;
    $("run-kind").className = `kind ${state.kind}`;
    $("run-status").textContent = `${state.sentence} Round ${this.counted}, ${kilograms(state.spent_kg)} of ${kilograms(state.budget_kg)} kg spent${last ? `, ${printable(state.metric.name)} ${scored(state.metric, last.score)}` : ""}.${state.shortened ? " Only the first rounds are shown." : ""}${this.fixed.synthetic ? " Synthetic intensity." : ""}`;
    $("run-status").classList.toggle("infeasible", state.gone || ["failed", "diverged"].includes(state.status));
    this.draw();
  }

  draw() {
    if (!this.state || $("run").hidden) return;
    this.tiles();
    this.cells();
    this.charts();
    this.panels();
  }

  /** Return kg as text, to the fourth digit of the budget: what is left of 3 kg is 0, not 0.00004. */
  kg(value) {
    const { budget_kg: budget } = this.state;
    return kilograms(value != null && budget > 0 ? Number(value.toFixed(Math.min(20, Math.max(0, 3 - Math.floor(Math.log10(budget)))))) : value);
  }

  /** Answer what is spent, what is left, when it ends and how good the model is. */
  tiles() {
    const { state } = this, { budget_kg: budget, figures } = state, { no_slack: planned } = this.fixed, { baseline } = state;
    const tell = (id, big, note) => { $(`run-${id}`).textContent = big; $(`run-${id}-note`).textContent = note; };
    tell("spent", `${kilograms(state.spent_kg)} kg`, `${budget ? `${percent(state.spent_kg / budget)} of ${kilograms(budget)} kg` : "no budget"}${figures.unsettled_kg ? `; ${this.kg(figures.unsettled_kg)} kg of it not settled` : ""}.`);
    const reserve = state.status === "done" ? null : state.replans[0]?.reserve_kg;
    tell("left", state.left_kg == null ? "–" : `${this.kg(state.left_kg)} kg`, state.status === "done" ? "The run is done." : `${this.kg(figures.to_come_kg)} kg of it planned${reserve == null ? "" : `, ${this.kg(reserve)} kg in reserve`}.`);
    const last = this.rounds.filter((r) => r.score != null).at(-1), trained = baseline?.rounds.filter((r) => r[3] != null).at(-1);
    const without = trained ? `Without slack${baseline.trains ? ", so far" : ""}: ${scored(state.metric, trained[3])} for ${this.kg(baseline.spent_kg)} kg.` : planned ? `Without slack the budget pays ${planned.rounds} round${planned.rounds === 1 ? "" : "s"} of all clients.` : "";
    $("run-score-name").textContent = metricName(state.metric);
    tell("score", last ? scored(state.metric, last.score) : "–", `${last ? `After round ${last.number + 1}. ` : "Not evaluated yet. "}${without}`);
    this.countdown();
  }

  /** Show when the run ends: how long from now, on this clock, and on that of the scenario. */
  countdown() {
    if (!this.state || $("run").hidden) return;
    const { ends, status, gone } = this.state, zone = this.fixed.time_zone;
    const local = ends.at ? `${clock(new Date(ends.at), zone)} ${zone}${zone === "UTC" ? "" : ` (${slotTime(this.problem, ends.slot)})`}` : `slot ${ends.slot}`;
    const over = status !== "running" || gone, left = ends.seconds == null ? null : ends.seconds - (Date.now() - this.taken) / 1000;
    $("run-ends").textContent = status === "done" ? "Ended" : over ? "Not running" : left == null ? local : left >= 1 ? `in ${duration(left)}` : "any moment";
    $("run-ends-note").textContent = `${over || left == null ? "" : `On this clock: ${clock(new Date(this.taken + 1000 * ends.seconds))}. `}In the scenario: ${local}.`;
  }

  charts() {
    const { metric, kg_by_round: kg, baseline } = this.state, byKg = $("run-axis").value === "kg", named = (short) => (slot) => (this.problem.start ? slotTime(this.problem, slot, short) : String(slot));
    const time = { x: this.problem.start ? "time, UTC" : "slot", xSpan: [0, this.slots], xTicks: (pixels) => this.grid.ticks(pixels), xFormat: named(true), xTell: named(false) };
    const name = metricName(metric), across = byKg ? { x: "kg CO2e, as settled" } : time;
    $("score-title").textContent = name;
    $("loss-by").textContent = byKg ? "by kg CO2e, as settled" : "by time";
    const curve = (read) => this.rounds.map((r, i) => [byKg ? kg[i] : r.slot, read(r)]).filter(([, value]) => value != null);
    const beside = (at) => (baseline?.rounds.length ? [{ name: "no slack, same budget", points: baseline.rounds.map((r) => [byKg ? r[1] : r[0], r[at]]).filter(([, value]) => value != null), kind: "c2", dashed: true, dots: true }] : []);
    this.curves.accuracy.show({ series: [{ name: "this run", points: curve((r) => r.score), kind: "c0", dots: true }, ...beside(3)], y: metricName(metric, metric.unit), yFormat: scoreTick(metric), ...across });
    this.curves.loss.show({ series: [{ name: "this run", points: curve((r) => r.loss), kind: "c0", dots: this.rounds.length < 60 }, ...beside(2)], y: "mean loss of the clients", ...across });
    const { budget_kg: budget, expected_kg, first_plan_kg: first, in_force: force, decided_slots: decided, spent_by_slot: spent } = this.state;
    const { planned_kg: planned, busy_slots: busy } = this.fixed, { slots } = this, top = budget ?? planned.at(-1);
    const left = (sums) => [[0, top], ...sums.map((sum, slot) => [slot + 1, top - sum])];
    const real = [[0, top], ...spent.flatMap(([slot, sum], i) => [[slot, top - (spent[i - 1]?.[1] ?? 0)], [slot + 1, top - sum]])], [now, here] = real.at(-1);
    const from = now ? planned[Math.min(now, planned.length) - 1] : 0;
    const series = [{ name: "realised", points: real, kind: "c1" }];
    if (!force) series.unshift({ name: "planned", points: left(planned), kind: "quiet", under: true });
    else {
      if (force.planned_kg) series.unshift({ name: "planned (plan in force)", points: left(force.planned_kg), kind: "quiet", under: true });
      series.push({ name: "first plan", points: left(planned), kind: "c2", dashed: true });
    }
    const rest = force ? force.rest_kg.map((kg, at) => [decided + at + 1, top - this.state.spent_kg - kg]) : busy.filter((slot) => slot >= now).map((slot) => [slot + 1, here - (planned[slot] - from)]);
    if (this.state.status !== "done") series.push({ name: "expected: the rest as planned", points: [real.at(-1), ...rest], kind: "c1", dashed: true });
    const reserve = this.state.status !== "done" ? this.state.replans[0]?.reserve_kg : null;
    if (reserve) series.push({ name: "reserve", points: [[now, reserve], [slots, reserve]], kind: "c0", dashed: true });
    const { no_slack: without } = this.fixed;
    if (without?.rounds) { let sum = 0; series.push({ name: "no slack (planned)", points: [[0, top], ...without.kg_by_slot.slice(0, without.rounds).map((kg, at) => [at + 1, top - (sum += kg)])], kind: "c4", dashed: true }); }
    this.curves.burn.show({ series, y: "kg remaining", zero: true, ...time });
    for (const id of CURVES) $(`${id}-export`).hidden = !this.curves[id].chart;
    const off = this.state.off_plan_kg;
    const way = off == null ? "" : Math.abs(off) < 1e-9 * (budget ?? 1) ? " So far as planned." : ` So far ${this.kg(Math.abs(off))} kg ${off > 0 ? "more" : "less"} than planned.`;
    const reference = this.state.replans.length ? ` The first plan expected ${this.kg(first)} kg.` : "";
    $("burn-note").textContent = `Expected at the end: ${this.kg(expected_kg)} kg${budget ? ` of ${kilograms(budget)}` : ""}.${way}${reference}`;
  }

  panels() {
    const { state } = this, names = (one) => one.clients.slice(0, MOST_NAMES).map((c) => printable(this.fixed.clients[c])).join(", ") + (one.count > MOST_NAMES ? ` and ${one.count - MOST_NAMES} more` : "");
    const line = (one) => (one ? `slot ${one.slot} (${slotTime(this.problem, one.slot)}${one.in_window ? ", fine-tuning" : ""}): ${names(one)}` : "no client");
    fill($("upcoming"), [["Now", state.status === "running" ? line(state.now) : "not running"], ["Next", line(state.next)], ["Rounds", this.counted], ["Seconds a round", this.rounds.length ? (this.rounds.reduce((a, r) => a + r.seconds, 0) / this.rounds.length).toFixed(2) : "–"]]);
    const when = (at) => (at ? [`${at.slice(0, 19).replace("T", " ").replace("Z", "")} UTC`] : []);
    const item = (event) => el("li", { class: event.level }, el("time", {}, [...when(event.at), ...(event.slot == null ? [] : [`slot ${event.slot}`])].join(", ")), printable(event.message));
    const list = (box, items, none) => box.replaceChildren(...(items.length ? items : [el("li", {}, none)]));
    const replanned = (one) => item({ level: "info", at: one.at ?? "", slot: one.slot, message: `Re-planned: ${one.reason}. ${changes(one.changes)} Planned ${this.kg(one.planned_kg)} kg in total, ${this.kg(one.reserve_kg)} kg in reserve.` });
    const missed = this.missed(), outcomes = Object.entries(state.outcomes).filter(([outcome]) => outcome !== "done" && outcome !== "running");
    for (const one of state.quarantined) missed.push(el("li", { class: "warning" }, `${one.client} reported ${one.reported_kwh} kWh in slot ${one.slot}, more than is possible; ${one.bound_kwh} kWh are charged. Confirm it with: slackwater confirm`));
    if (outcomes.length) missed.push(el("li", { class: "warning" }, `Results of the requested clients: ${outcomes.map(([outcome, count]) => `${count} ${outcome}`).join(", ")}; ${state.outcomes.done ?? 0} done.`));
    for (const one of state.measured) missed.push(el("li", { class: "warning" }, `${printable(one.client)}: measured ${figure(one.measured_kwh, 3)} kWh a start, far below the declared ${figure(one.declared_kwh, 3)} kWh. The plan saves too much for it. Measure the site with: slackwater calibrate`));
    list($("log"), state.log.map(item), "Nothing yet.");
    list($("failures"), [...missed, ...state.events.filter((event) => event.level !== "info").map(item)], "No failures.");
    list($("replans"), state.replans.map(replanned), "No re-plan: the run follows its first plan.");
    const { by_intensity: kinds, settled, unplanned } = state.charges, lines = [], causes = Object.entries(state.figures.by_cause_kg);
    if (causes.length > 1) lines.push(el("li", {}, `By cause: ${causes.map(([cause, kg]) => `${cause} ${kilograms(kg)} kg`).join(", ")}.`));
    if (state.figures.unsettled_kg) lines.push(el("li", {}, `${kilograms(state.figures.unsettled_kg)} kg are not settled yet: they are charged at an upper bound or a forecast.`));
    for (const [kind, { lines: count, kg }] of Object.entries(kinds)) lines.push(el("li", {}, `${count.toLocaleString("en")} ledger lines at ${kind} intensity, ${kilograms(kg)} kg.`));
    for (const [kind, { lines: count, kg }] of Object.entries(settled)) lines.push(el("li", {}, `${count.toLocaleString("en")} ${kind}${count === 1 ? "" : "s"}, in total ${kg >= 0 ? "+" : "−"}${kilograms(Math.abs(kg))} kg.`));
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
    const { problem, bits, shades, available } = this, { clients } = problem, look = gridColours(), { slots } = this, reached = this.state.reached_slots;
    this.did = this.trained();
    const order = [...clients.name.keys()];
    if (order.length > 100) order.sort((a, b) => clients.zone[a] - clients.zone[b] || a - b);
    const line = new Uint8Array(slots);
    this.grid.show({
      problem, slots, rows: order, labels: clients.name, groups: clients.zone.map((z) => problem.zones[z]), colours: look.colours, window: this.window,
      keys: [[look.TRAINS, "trained as planned"], [look.PENDING, "planned, not reached yet", "pending"], [look.MISSED, "planned, did not train", "missed"], [look.EXTRA, "trained, not planned", "extra"], [0, "only in the first plan", "superseded"], ["window", "fine-tuning window"]],
      paint: (client) => {
        line.set(shades[clients.zone[client]].shade.subarray(0, slots));
        for (let slot = 0; slot < slots; slot++) {
          const planned = bits.has(client, slot), trained = this.did[client][slot];
          if (trained) line[slot] = planned ? look.TRAINS : look.EXTRA;
          else if (planned) line[slot] = slot < reached ? look.MISSED : look.PENDING;
          else if (!available.has(clients.mask[client], slot)) line[slot] = look.CANNOT;
        }
        return line;
      },
      mark: (client, slot) => this.mark(client, slot),
      skyline: (client) => shades[clients.zone[client]].skyline,
      cannot: (client, slot) => !available.has(clients.mask[client], slot),
    });
  }

  /** Return the rounds as rows: what the curves show. */
  table() {
    const { kg_by_round: kg, budget_kg: budget } = this.state;
    return [["round", "slot", "start", "clients", "kg_settled", "kg_remaining", "loss", this.state.metric.name], ...this.rounds.map((r, i) => [r.number + 1, r.slot, r.start, r.clients.length, kg[i], budget == null ? "" : budget - kg[i], r.loss, r.score])];
  }

  /** Return a row for each planned or trained client-slot. */
  schedule() {
    const rows = [["client", "slot", "time", "state"]];
    this.fixed.clients.forEach((name, c) => { for (let slot = 0; slot < this.slots; slot++) { const state = this.mark(c, slot) ?? (this.did[c][slot] ? "trained" : null); if (state) rows.push([name, slot, slotTime(this.problem, slot), state]); } });
    return rows;
  }

  /** Return what a cell is beside its colour; "superseded": only the first plan had it. */
  mark(client, slot) {
    if (this.did[client][slot]) return this.bits.has(client, slot) ? null : "extra";
    if (this.bits.has(client, slot)) return slot < this.state.reached_slots ? "missed" : "pending";
    return this.state.in_force && this.first.has(client, slot) ? "superseded" : null;
  }

  tell(client, slot) {
    const { clients } = this.problem, zone = clients.zone[client], intensity = this.problem.intensity_g_per_kwh[zone][slot];
    const planned = this.bits.has(client, slot), trained = this.did[client][slot];
    const what = trained ? (planned ? "Trained as planned." : "Trained, not planned.") : planned ? (slot < this.state.reached_slots ? "Planned, did not train." : "Planned, not reached yet.") : this.mark(client, slot) ? "In the first plan only; a re-plan dropped it." : "Not planned.";
    return [`${printable(clients.name[client])} (${printable(this.problem.zones[zone])}), ${slotTime(this.problem, slot)}`, `${Math.round(intensity)} g/kWh · ${kilograms(intensity / 1000 * clients.energy_kwh[client])} kg`, what];
  }
}
