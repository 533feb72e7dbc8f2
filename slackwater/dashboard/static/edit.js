// The Edit panel. An edited scenario is its id, "~", and the changes as JSON: a source like any other, and all of it in the link.
import { $, ask, download, el, printable } from "./base.js";

const MARK = "~", NEW = "new", AGAIN_MS = 2000, MOST_CHANGES = 6000;

export class EditPanel {
  /** `open(source, fresh)` shows a source, `watch(run)` a run; `query()` returns the plan on show. */
  constructor(open, watch, query) {
    Object.assign(this, { open, watch, query, made: new Map() });
    $("edit-client").addEventListener("change", () => this.fill());
    $("edit-form").addEventListener("submit", (event) => { event.preventDefault(); this.change(); });
    $("edit-remove").addEventListener("click", () => this.remove());
    for (const [id, key] of [["edit-data", "data"], ["edit-factor", "factor"]]) $(id).addEventListener("change", () => this.choose(key, $(id).value));
    $("edit-undo").addEventListener("click", () => this.apply({}));
    $("edit-download").addEventListener("click", () => this.act(async () => { const { name, toml } = await ask("/api/scenario", this.query()); download(name, new Blob([toml], { type: "application/toml" })); return `Downloaded ${printable(name)}.`; }));
    $("edit-save").addEventListener("click", () => this.act(async () => { const { saved } = await ask("/api/save", {}, undefined, this.query()); await this.open(this.base, true); return `Saved ${printable(saved)}.`; }));
    for (const kind of ["rehearse", "train"]) $(`edit-${kind}`).addEventListener("click", () => this.act(async () => { const { folder } = await ask("/api/start", {}, undefined, { ...this.query(), kind }); this.jobs(); return `Started in ${printable(folder)}.`; }));
    document.addEventListener("slackwater:add-site", (event) => this.add(event.detail.zone));
    addEventListener("popstate", () => { const linked = this.linked(); if (linked && ![...$("source").options].some((one) => one.value === linked)) $("source").append(el("option", { value: linked }, "scenario: edited")); });
  }

  /** Return the edited source in the page's address, if there is one. */
  linked() {
    const source = new URLSearchParams(location.hash.split("?")[1] ?? "").get("source");
    return source?.includes(MARK) ? source : null;
  }

  /** Return the scenario that an edited source is made of; any other source as it is. */
  unedited(source) { return source.split(MARK)[0]; }

  /** Return the sources, with the edited ones. */
  listed(sources) {
    const linked = this.linked(), known = new Map(sources.map((one) => [one.id, one]));
    if (linked) this.made.set(linked, null);
    const edited = [...this.made.keys()].map((id) => [id, known.get(this.unedited(id))]).filter(([, base]) => base);
    return [...sources, ...edited.map(([id, base], at) => ({ id, kind: base.kind, label: `${base.label}, edited${edited.length > 1 ? ` (${at + 1})` : ""}` }))];
  }

  /** Show the clients and the data of a source that was just opened. */
  async opened(source) {
    this.base = this.unedited(source);
    try { this.changes = JSON.parse(source.slice(this.base.length + 1) || "{}"); } catch { this.changes = {}; }
    let file;
    try { file = await ask("/api/edit", { source: this.base }); } catch (error) { file = { file: null, sentence: error.message }; }
    if (source !== $("source").value) return;
    this.file = file;
    $("edit-body").hidden = !file.file;
    if (file.file) document.documentElement.dataset.edit = "yes"; else delete document.documentElement.dataset.edit;
    $("edit-note").textContent = file.sentence ?? (file.writable ? "Changes show in the plan at once. The file changes when you save it." : "Changes show in the plan and in the file that you download. To save or to start a run here, use: slackwater serve --writable");
    if (!file.file) return;
    $("edit-zones").replaceChildren(...file.zones.map((zone) => el("option", { value: zone })));
    $("edit-data").replaceChildren(el("option", { value: "" }, `as in the file: ${printable(file.source)}`), ...file.choices.map((one) => el("option", { value: one.id }, printable(one.label))));
    $("edit-data").value = this.changes.data ?? "";
    $("edit-factor").value = this.changes.factor ?? file.factor;
    $("edit-undo").disabled = source === this.base;
    $("edit-write").hidden = !file.writable;
    $("edit-save").textContent = `Save ${printable(file.file)}`;
    this.rows();
    if (file.writable) this.jobs();
  }

  /** Return the clients as edited: [key, values, as in the file]. */
  clients() {
    const { clients = {}, added = [] } = this.changes;
    return [...this.file.clients.map((one, n) => [String(n), { ...one, ...clients[n] }, one]).filter(([n]) => clients[n] !== null), ...added.map((one, n) => [`+${n}`, one, null])];
  }

  rows() {
    const kept = $("edit-client").value;
    $("edit-client").replaceChildren(...this.clients().map(([key, one]) => el("option", { value: key }, `${printable(one.name)} (${printable(one.zone)})`)), el("option", { value: NEW }, "New client"));
    $("edit-client").value = kept;
    if (!$("edit-client").value) $("edit-client").selectedIndex = 0;
    this.fill();
  }

  fill() {
    const one = this.clients().find(([key]) => key === $("edit-client").value)?.[1] ?? { name: "", zone: "", power_w: "", unavailable: [] };
    $("edit-name").value = one.name;
    $("edit-zone").value = one.zone;
    $("edit-watts").value = one.power_w ?? "";
    $("edit-watts").placeholder = one.energy_kwh ? `${one.energy_kwh} kWh a round` : "";
    $("edit-watts").disabled = one.levels > 0;
    $("edit-watts").required = !(one.energy_kwh || one.levels);
    $("edit-away").value = (one.unavailable ?? []).join("\n");
    const added = $("edit-client").value === NEW;
    $("edit-apply").textContent = added ? "Add" : "Change";
    $("edit-remove").disabled = added;
  }

  /** Begin a new client in a zone, as from the map. */
  add(zone) {
    if (!this.file?.file) return;
    $("tab-plan").click();
    $("edit").open = true;
    $("edit-client").value = NEW;
    this.fill();
    $("edit-zone").value = zone;
    $("edit-name").focus();
  }

  copy() { return structuredClone({ clients: {}, added: [], ...this.changes }); }

  change() {
    const key = $("edit-client").value, changes = this.copy(), watts = $("edit-watts").value;
    const values = { name: $("edit-name").value, zone: $("edit-zone").value.trim(), ...(watts === "" ? {} : { power_w: Number(watts) }), unavailable: $("edit-away").value.split("\n").map((line) => line.trim()).filter(Boolean) };
    let said = "Changed.";
    if (key === NEW) { changes.added.push(values); said = `Added ${printable(values.name)}.`; }
    else if (key[0] === "+") changes.added[Number(key.slice(1))] = values;
    else {
      const was = this.file.clients[key], other = Object.entries(values).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(was[name]));
      if (other.length) changes.clients[key] = Object.fromEntries(other); else delete changes.clients[key];
    }
    this.apply(changes, said);
  }

  remove() {
    const key = $("edit-client").value, changes = this.copy(), [, { name }] = this.clients().find(([one]) => one === key);
    if (key[0] === "+") changes.added.splice(Number(key.slice(1)), 1); else changes.clients[key] = null;
    this.apply(changes, `Removed ${printable(name)}.`);
  }

  choose(key, value) {
    const changes = this.copy();
    if (value && !(key === "factor" && value === this.file.factor)) changes[key] = value; else delete changes[key];
    this.apply(changes);
  }

  /** Show the scenario with these changes, if the server accepts them. */
  apply({ clients = {}, added = [], data, factor }, said = "Changed.") {
    return this.act(async () => {
      const changes = { ...(Object.keys(clients).length && { clients }), ...(added.length && { added }), ...(data && { data }), ...(factor && { factor }) };
      const text = JSON.stringify({ of: this.file.of, ...changes }), source = Object.keys(changes).length ? `${this.base}${MARK}${text}` : this.base;
      if (text.length > MOST_CHANGES) throw new Error("There are too many changes for the page. Download the scenario file, and edit it in an editor.");
      await ask("/api/problem", { source });
      this.made.clear();
      if (source !== this.base) this.made.set(source, null);
      await this.open(source, false);
      return source === this.base ? "The scenario is as in its file." : said;
    });
  }

  /** Do one thing at a time, and say how it went. */
  async act(work) {
    const say = (text, kind = "") => { $("edit-status").textContent = text; $("edit-status").className = `status ${kind}`; }, focused = document.activeElement, body = $("edit-body");
    say("Working …", "waiting");
    body.inert = true;
    let told;
    try { told = [await work()]; } catch (error) {
      told = [error.message, "infeasible"];
      if (this.file?.file) { $("edit-data").value = this.changes.data ?? ""; $("edit-factor").value = this.changes.factor ?? this.file.factor; }
    }
    body.inert = false;
    if (document.activeElement === document.body) focused?.focus();
    say(...told);
  }

  /** List the started runs, until all have ended. */
  async jobs() {
    clearTimeout(this.waiting);
    let jobs = [];
    try { ({ jobs } = await ask("/api/jobs")); } catch { /* the next look tells */ }
    $("edit-jobs").replaceChildren(...jobs.map((one) => {
      const failed = one.ended && one.exit_code !== 0, watch = el("button", { type: "button" }, "Watch");
      watch.addEventListener("click", () => this.watch(one.run));
      return el("li", { class: failed ? "error" : "info" }, `${printable(one.folder)}: ${one.exit_code < 0 ? "killed" : failed ? "failed" : one.ended ? "ended" : one.begun ? "running" : "starting"}. `, ...(one.begun ? [watch] : []), ...(failed ? [el("pre", {}, one.last_words.split("\n").slice(-6).map(printable).join("\n"))] : []));
    }));
    if (jobs.some((one) => !one.ended)) this.waiting = setTimeout(() => this.jobs(), AGAIN_MS);
  }
}
