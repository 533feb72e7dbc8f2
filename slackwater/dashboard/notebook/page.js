// The page inside a notebook: the Plan view of one plan, and the map on request.
import { $, el, showTrouble } from "../static/base.js";
import { MapView } from "../static/map.js";
import { ONE_ZONE, PlanView } from "../static/plan.js";

const SOURCE = "plan";

const plan = new PlanView(() => {});
const busy = (slot) => plan.problem.clients.name.flatMap((_, client) => (plan.bits.has(client, slot) ? [plan.problem.zones[plan.problem.clients.zone[client]]] : []));
const map = new MapView(
  (_, slot) => new Set(plan.bits ? busy(slot) : []),
  (zone) => { $("filter").value = ONE_ZONE + zone; plan.draw(); },
  () => {},
);

const box = el("details", {}, el("summary", {}, "Map"));
$("map").before(box);
box.append($("map"));
$("map").hidden = false;
box.addEventListener("toggle", () => { if (box.open && !map.data) map.open(SOURCE).catch(showTrouble); });

$("tiles").before($("synthetic")); // the page's head is not shown here
const told = () => { $("synthetic").hidden = !plan.problem.synthetic; $("origin").textContent = plan.origin(); };
plan.open(SOURCE).then(told).catch(showTrouble);
document.documentElement.dataset.ready = "yes";
