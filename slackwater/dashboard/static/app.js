// The page: four views, one scenario or plan at a time, light or dark.
import { $, ask, el, local, printable, showTrouble } from "./base.js";
import { CompareView } from "./compare.js";
import { EditPanel } from "./edit.js";
import { MapView } from "./map.js";
import { ONE_ZONE, PlanView } from "./plan.js";
import { RunView } from "./run.js";

const VIEWS = ["plan", "map", "run", "compare"];
const PUSH_AFTER_MS = 400;
const compare = new CompareView(() => note());
const plan = new PlanView((...pinned) => compare.pin(...pinned), () => note());
const map = new MapView(
  (source, slot) => new Set(plan.plan && plan.problem.source === source ? plan.problem.clients.name.flatMap((_, c) => (plan.bits.has(c, slot) ? [plan.problem.zones[plan.problem.clients.zone[c]]] : [])) : []),
  (zone) => { $("filter").value = ONE_ZONE + zone; plan.draw(); show("plan", true); },
  () => { plan.slot = Number($("hour").value); plan.grid.pointAt(plan.slot); note(); },
);
const run = new RunView();
const edit = new EditPanel(
  async (source, fresh) => {
    showTrouble(null);
    wanted = fresh ? null : new URLSearchParams(plan.link());
    options($("source"), edit.listed(sources));
    $("source").value = source;
    if (fresh) opened.plan = null;
    await open("plan");
    opened.map = null;
    note();
  },
  async (id) => { await refresh(); $("runs").value = id; await show("run"); },
  () => plan.query(),
);
const opened = { plan: null, map: null, run: null };
let sources = [];
let wanted = null;
let noting = null;
let going = false;

function options(select, list, name = (one) => `${one.kind}: ${printable(one.label)}`) {
  const kept = select.value;
  select.replaceChildren(...list.map((one) => el("option", { value: one.id }, name(one))));
  if (list.some((one) => one.id === kept)) select.value = kept;
}

async function refresh() {
  ({ sources } = await ask("/api/sources"));
  options($("source"), edit.listed(sources));
  options($("runs"), sources.filter((one) => one.kind === "run"), (one) => printable(one.label));
}

async function open(view) {
  const source = $("source").value;
  try {
    if (view === "map" && plan.slot != null) setHour(plan.slot);
    if (view === "map" && opened.map !== source && source) { opened.map = source; await map.open(source); } else if (view === "map" && map.data) map.draw();
    if ((view === "plan" || view === "map") && opened.plan !== source && source) { opened.plan = source; await plan.open(source, wanted); wanted = null; origin(); await edit.opened(source); }
    if (view === "run") {
      await refresh();
      if (opened.run !== $("runs").value || !$("runs").value) { opened.run = $("runs").value; await run.open($("runs").value); } else { run.follow(); run.draw(); }
    }
    if (view === "compare") { await refresh(); await compare.open(sources); }
    links(view);
  } catch (error) {
    opened[view] = null;
    const base = edit.unedited(source);
    if (base !== source && error.status === 400) { $("source").value = base; await open(view); } // edits that do not fit the file: it is shown without them
    showTrouble(error);
  }
}

const setHour = (slot) => { $("hour").max = Math.max(Number($("hour").max), slot); $("hour").value = slot; };

/** Return the link to exactly this view. */
function address(view) {
  const fields = new URLSearchParams();
  if (view === "run") { if ($("runs").value) fields.set("run", $("runs").value); }
  else if (view !== "compare" && $("source").value) fields.set("source", $("source").value);
  if (view === "map") { fields.set("hour", $("hour").value); if (map.region !== "All") fields.set("region", map.region); }
  if ((view === "plan" || view === "map") && plan.problem?.source === $("source").value) for (const [key, value] of Object.entries(plan.link())) fields.set(key, value);
  if (view === "compare") for (const [key, value] of compare.link()) fields.append(key, value);
  return `#${view}${fields.size ? `?${fields}` : ""}`;
}

/** Keep the address up to date: what rests is a step that the back button undoes. */
function note() {
  clearTimeout(noting);
  noting = setTimeout(() => {
    const at = address(current());
    if (going || at === location.hash || (current() === "plan" && !opened.plan)) return;
    history.pushState(null, "", at);
    links(current());
  }, PUSH_AFTER_MS);
}

/** Complete the address: what a view adds by itself is no step. */
function complete() {
  clearTimeout(noting);
  history.replaceState(null, "", address(current()));
}

/** Show the view of the address, as given by a shared link or by back and forward. */
async function go() {
  clearTimeout(noting);
  going = true;
  const [view, text = ""] = location.hash.slice(1).split(/\?(.*)/s), fields = new URLSearchParams(text), wish = VIEWS.includes(view) ? view : "plan";
  for (const [id, key] of [["source", "source"], ["runs", "run"]]) if ([...$(id).options].some((one) => one.value === fields.get(key))) $(id).value = fields.get(key);
  if (wish === "map") {
    if (/^\d{1,6}$/.test(fields.get("hour") ?? "")) setHour(plan.slot = Number(fields.get("hour")));
    map.region = fields.get("region") ?? "All";
    if (map.data?.source === $("source").value) map.show(map.region);
  }
  try {
    if (wish === "compare") await compare.restore(fields);
    if (wish !== "plan" && wish !== "map") wanted = null;
    else if (opened.plan && opened.plan === $("source").value) plan.reset(text ? fields : null);
    else wanted = text ? fields : null;
  } catch (error) { showTrouble(error); }
  await show(wish, false, false);
  complete();
  going = false;
}

async function share() {
  const link = new URL(address(current()), location.href).href;
  try { await navigator.clipboard.writeText(link); $("done").textContent = "The link is copied."; } catch { $("done").textContent = "Copy the address of this page: it restores this view."; }
}

function origin() {
  badge();
  $("origin").textContent = plan.origin();
}

/** Say next to the scenario's name that its intensity is not measured. */
function badge() { $("synthetic").hidden = $("source-box").hidden || !plan.problem?.synthetic; }

function links(view) {
  const best = (settings) => `/api/plan/best?${new URLSearchParams(settings)}`, source = { source: $("source").value };
  const shown = compare.pinned.filter((one) => compare.chosen.has(one.id)), ids = [...compare.chosen].filter((id) => !id.startsWith("pin")).join(",");
  const at = {
    plan: [best(plan.problem ? plan.settings() : source)], map: [`/api/map?${new URLSearchParams(source)}`], run: $("runs").value ? [`/api/run?${new URLSearchParams({ run: $("runs").value })}`] : [],
    compare: [...(ids ? [`/api/compare?${new URLSearchParams({ ids })}`] : []), ...shown.map((one) => best(one.settings))],
  };
  $("json-links").replaceChildren(...at[view].flatMap((one, i) => [" ", el("a", { href: local(one) }, i ? `and ${i + 1}` : "JSON of exactly this")]));
}

async function show(view, focus = false, push = true) {
  for (const one of VIEWS) {
    $(one).hidden = one !== view;
    const tab = $(`tab-${one}`);
    tab.setAttribute("aria-selected", String(one === view));
    tab.tabIndex = one === view ? 0 : -1;
    if (focus && one === view) tab.focus();
  }
  $("source-box").hidden = $("origin").hidden = view === "run" || view === "compare"; // runs have data of their own
  badge();
  if (view !== "map") map.play(false);
  showTrouble(null);
  if (push && view !== location.hash.slice(1).split("?")[0]) { clearTimeout(noting); history.pushState(null, "", address(view)); }
  await open(view);
  if (push) complete();
}

const current = () => VIEWS.find((one) => !$(one).hidden);

for (const view of VIEWS) {
  $(`tab-${view}`).addEventListener("click", () => show(view));
  $(`tab-${view}`).addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) show(VIEWS[(VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length], true);
  });
}
$("source").addEventListener("change", () => { showTrouble(null); open(current()); note(); });
$("runs").addEventListener("change", () => { opened.run = $("runs").value; note(); });
$("share").addEventListener("click", share);
addEventListener("popstate", go);
for (const event of ["drawn", "joint", "settled"]) document.addEventListener(`slackwater:${event}`, () => { if (!$("map").hidden) map.colours(); });

const THEMES = ["system", "light", "dark"];
function theme(name) {
  document.documentElement.classList.remove("light", "dark");
  if (name !== "system") document.documentElement.classList.add(name);
  $("theme").textContent = `Theme: ${name}`;
  $("theme").dataset.name = name;
  try { localStorage.setItem("slackwater-theme", name); } catch { /* private windows have no storage */ }
  document.dispatchEvent(new Event("slackwater:theme"));
}
$("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf($("theme").dataset.name) + 1) % THEMES.length]));
let kept = null;
try { kept = localStorage.getItem("slackwater-theme"); } catch { /* as above */ }
theme(THEMES.includes(kept) ? kept : "system");

try {
  await refresh();
  if (!sources.length) showTrouble(new Error("This folder has no scenario, plan or run yet."));
  await go();
} catch (error) { showTrouble(error); }
document.documentElement.dataset.ready = "yes";
