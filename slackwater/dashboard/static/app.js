// The page: four views, one scenario or plan at a time, light or dark.
import { $, ask, el, printable, showTrouble } from "./base.js";
import { CompareView } from "./compare.js";
import { MapView } from "./map.js";
import { PlanView } from "./plan.js";
import { RunView } from "./run.js";

const VIEWS = ["plan", "map", "run", "compare"];
const compare = new CompareView();
const plan = new PlanView((...pinned) => compare.pin(...pinned));
const map = new MapView();
const run = new RunView();
const opened = { plan: null, map: null, run: null };
let sources = [];

function options(select, list) {
  const kept = select.value;
  select.replaceChildren(...list.map((one) => el("option", { value: one.id }, `${one.kind}: ${printable(one.label)}`)));
  if (list.some((one) => one.id === kept)) select.value = kept;
}

async function refresh() {
  ({ sources } = await ask("/api/sources"));
  options($("source"), sources);
  options($("runs"), sources.filter((one) => one.kind === "run"));
}

async function open(view) {
  const source = $("source").value;
  try {
    if (view === "plan" && opened.plan !== source && source) { opened.plan = source; await plan.open(source); origin(); }
    if (view === "map" && opened.map !== source && source) { opened.map = source; await map.open(source); } else if (view === "map" && map.data) map.draw();
    if (view === "run") {
      await refresh();
      if (opened.run !== $("runs").value || !$("runs").value) { opened.run = $("runs").value; await run.open($("runs").value); } else run.draw();
    }
    if (view === "compare") { await refresh(); await compare.open(sources); }
    links(view);
  } catch (error) {
    opened[view] = null;
    showTrouble(error);
  }
}

function origin() {
  const { problem } = plan;
  const filled = problem.filled_hours ? `, ${problem.filled_hours} hours filled in` : "";
  $("origin").textContent = `${problem.synthetic ? "Synthetic intensity. " : ""}Intensity: ${problem.factor}, from ${problem.sources.slice(0, 3).map(printable).join("; ")}${problem.sources.length > 3 ? ` and ${problem.sources.length - 3} more` : ""}${filled}.`;
}

function links(view) {
  const source = encodeURIComponent($("source").value), chosen = encodeURIComponent($("runs").value);
  const at = { plan: `/api/plan/best?source=${source}`, map: `/api/map?source=${source}`, run: `/api/run?run=${chosen}`, compare: `/api/compare?ids=${encodeURIComponent([...compare.chosen].filter((id) => !id.startsWith("pin")).join(","))}` };
  $("json-links").replaceChildren(el("a", { href: at[view] }, "This view as JSON"));
}

function show(view, focus = false) {
  for (const one of VIEWS) {
    $(one).hidden = one !== view;
    const tab = $(`tab-${one}`);
    tab.setAttribute("aria-selected", String(one === view));
    tab.tabIndex = one === view ? 0 : -1;
    if (focus && one === view) tab.focus();
  }
  $("source-box").hidden = view === "run" || view === "compare";
  if (view !== "map") map.play(false);
  showTrouble(null);
  history.replaceState(null, "", `#${view}`);
  return open(view);
}

const current = () => VIEWS.find((one) => !$(one).hidden);

for (const view of VIEWS) {
  $(`tab-${view}`).addEventListener("click", () => show(view));
  $(`tab-${view}`).addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) show(VIEWS[(VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length], true);
  });
}
$("source").addEventListener("change", () => open(current()));

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
  const wanted = location.hash.slice(1);
  if (!sources.length) showTrouble(new Error("This folder has no scenario, plan or run yet."));
  await show(VIEWS.includes(wanted) ? wanted : "plan");
} catch (error) { showTrouble(error); }
document.documentElement.dataset.ready = "yes";
