// The Map view: countries and zones, coloured by intensity in the hour of the slider; zones that train then have a ring.
import { $, ask, colour, el, legend, local, mixed, onTheme, printable, showTrouble, slotTime } from "./base.js";
import { svg } from "./chart.js";
import { exports } from "./export.js";
import { geoNaturalEarth1, geoPath } from "./vendor/d3-geo.js";
import { feature } from "./vendor/topojson.js";

const REGIONS = { Europe: [-26, 33, 46, 72], "North America": [-130, 15, -55, 60], "Asia and Pacific": [65, -48, 180, 50], "South America": [-95, -56, -30, 14] };
const PLAY_MS = 160;

export class MapView {
  /** `training(source, slot)` returns the zones that train then; `filter(zone)` shows a zone's clients; `noted()` is called on a change. */
  constructor(training, filter, noted) {
    Object.assign(this, { training, filter, noted, region: "All", zone: null });
    $("hour").addEventListener("input", () => { this.colours(); this.noted(); });
    $("zone-filter").addEventListener("click", () => this.filter(this.zone.zone));
    $("zone-add").addEventListener("click", () => document.dispatchEvent(new CustomEvent("slackwater:add-site", { detail: { zone: this.zone.zone } })));
    exports($("map-export"), "map", { picture: () => $("world").querySelector("svg"), rows: () => this.rows() });
    $("play").addEventListener("click", () => { this.play(!this.playing); this.noted(); });
    onTheme(() => this.colours());
    new ResizeObserver(() => { if (this.data && $("world").clientWidth !== this.wide) this.draw(); }).observe($("world"));
  }

  async open(source) {
    this.play(false);
    $("world").textContent = "Loading the map.";
    const shapes = this.land ? null : fetch(local("/vendor/countries-110m.json")).then((answer) => answer.json());
    this.data = await ask("/api/map", { source });
    if (shapes) { const atlas = await shapes; this.land = feature(atlas, atlas.objects.countries).features; }
    $("hour").max = this.data.slots - 1;
    $("hour").value = Math.min(Number($("hour").value), this.data.slots - 1);
    const all = this.data.zones.flatMap((zone) => zone.intensity_g_per_kwh);
    this.low = all.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    this.placed = this.data.zones.filter((zone) => zone.longitude != null);
    const within = ([w, s, e, n]) => this.placed.filter((z) => z.longitude > w && z.longitude < e && z.latitude > s && z.latitude < n).length;
    const regions = Object.entries(REGIONS).filter(([, box]) => within(box) > 0 && within(box) < this.placed.length);
    $("regions").replaceChildren(...(regions.length ? [["All", null], ...regions] : []).map(([name]) => {
      const button = el("button", { type: "button" }, name);
      button.addEventListener("click", () => { this.show(name); this.noted(); });
      return button;
    }));
    this.choose(null);
    this.show(regions.some(([name]) => name === this.region) ? this.region : "All");
  }

  /** Show a region, or all zones. */
  show(region) {
    this.region = region;
    this.box = REGIONS[region] ?? null;
    for (const one of $("regions").children) one.setAttribute("aria-pressed", String(one.textContent === region));
    this.draw();
  }

  /** Return intensity by hour, a row for each zone. */
  rows() {
    const { zones, slots } = this.data, times = [...Array(slots).keys()];
    return [["zone", "clients", "longitude", "latitude", ...times.map((slot) => `${slotTime(this.data, slot)}, g/kWh`)],
      ...zones.map((z) => [z.zone, z.clients, z.longitude, z.latitude, ...z.intensity_g_per_kwh])];
  }

  /** Offer what can be done with a zone. */
  choose(zone) {
    this.zone = zone;
    $("map-zone").hidden = !zone;
    if (!zone) return;
    $("zone-name").textContent = this.words(zone);
    $("zone-filter").hidden = !zone.clients;
    $("zone-add").hidden = !document.documentElement.dataset.edit;
    this.colours();
  }

  words(zone) {
    const slot = Number($("hour").value), grams = zone.intensity_g_per_kwh ? `${Math.round(zone.intensity_g_per_kwh[slot])} g/kWh, ` : "";
    return `${printable(zone.zone)}: ${grams}${zone.clients} client${zone.clients === 1 ? "" : "s"}${this.busy.has(zone.zone) ? ", trains in this hour" : ""}`;
  }

  /** Return the shown area: the region, or all zones with a margin. */
  frame() {
    if (this.box) return this.box;
    const xs = this.placed.map((z) => z.longitude), ys = this.placed.map((z) => z.latitude);
    if (!xs.length) return [-170, -56, 180, 75];
    const [w, e, s, n] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const room = Math.max(4, (e - w) * 0.07, (n - s) * 0.1);
    return [Math.max(-180, w - room), Math.max(-60, s - room), Math.min(180, e + room), Math.min(80, n + room)];
  }

  draw() {
    if (!$("world").clientWidth) return;
    const [w, s, e, n] = this.frame();
    const wide = (this.wide = $("world").clientWidth), squeeze = Math.cos((s + n) / 2 * Math.PI / 180) || 1;
    const tall = Math.min(Math.max(wide * (n - s) / ((e - w) * squeeze), 220), 620);
    const corners = { type: "MultiPoint", coordinates: [[w, s], [w, n], [e, s], [e, n], [(w + e) / 2, s], [(w + e) / 2, n]] };
    const projection = geoNaturalEarth1().rotate([-(w + e) / 2, 0]).fitExtent([[2, 2], [wide - 2, tall - 2]], { ...corners });
    const path = geoPath(projection), x = (longitude, latitude) => projection([longitude, latitude])[0], y = (longitude, latitude) => projection([longitude, latitude])[1];
    const root = svg("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "group", "aria-label": "Zones by intensity" });
    root.style.overflow = "hidden";
    const whole = new Map(this.placed.filter((zone) => zone.whole_country).map((zone) => [zone.country, zone]));
    this.shapes = [];
    for (const country of this.land) {
      const shape = svg("path", { class: "land", d: path(country) ?? "" }), zone = whole.get(country.id);
      if (zone) { this.shapes.push([shape, zone]); shape.append(svg("title")); this.clickable(shape, zone); }
      root.append(shape);
    }
    if (document.documentElement.dataset.edit) for (const zone of this.data.further) { // zones of the data in which no site is yet
      const point = svg("circle", { class: "zone further", cx: x(zone.longitude, zone.latitude), cy: y(zone.longitude, zone.latitude), r: 4, tabindex: "0", role: "button", "aria-label": `${zone.zone}: no client` }, svg("title"));
      point.firstChild.textContent = `${zone.zone}: no client`;
      this.clickable(point, zone);
      root.append(point);
    }
    const inside = this.inside = this.placed.filter((z) => z.longitude > w && z.longitude < e && z.latitude > s && z.latitude < n);
    const crowd = inside.length > 40, named = inside.length <= 30;
    this.points = inside.map((zone) => {
      const radius = (crowd ? 4.5 : 9) + Math.min(crowd ? 3 : 9, Math.sqrt(zone.clients - 1) * (crowd ? 0.6 : 1.6));
      const point = svg("circle", { class: "zone", cx: x(zone.longitude, zone.latitude), cy: y(zone.longitude, zone.latitude), r: radius, tabindex: "0", role: "button" });
      this.clickable(point, zone);
      point.append(svg("title"));
      root.append(point);
      if (named) {
        const name = svg("text", { class: "name", x: x(zone.longitude, zone.latitude) + radius + 4, y: y(zone.longitude, zone.latitude) + 4 });
        name.textContent = printable(zone.zone);
        root.append(name);
      }
      if (zone.clients > 1 && !crowd) {
        const count = svg("text", { class: "count", x: x(zone.longitude, zone.latitude), y: y(zone.longitude, zone.latitude) + 4 });
        count.textContent = zone.clients;
        root.append(count);
      }
      return point;
    });
    $("world").replaceChildren(root);
    this.colours();
  }

  /** A click, Enter or space on a zone chooses it. */
  clickable(shape, zone) {
    shape.addEventListener("click", () => this.choose(zone));
    shape.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.choose(zone); } });
  }

  colours() {
    if (!this.data || !this.points) return;
    const slot = Number($("hour").value), [low, middle, high] = ["map-low", "map-middle", "map-high"].map(colour);
    const at = slotTime(this.data, slot);
    $("hour-out").value = at;
    $("hour").setAttribute("aria-valuetext", at);
    const share = (zone) => (zone.intensity_g_per_kwh[slot] - this.low) / (this.high - this.low || 1);
    const fillOf = (zone) => `rgb(${(share(zone) < 0.5 ? mixed(low, middle, 2 * share(zone)) : mixed(middle, high, 2 * share(zone) - 1)).join(" ")})`;
    const busy = (this.busy = this.training(this.data.source, slot));
    for (const [shape, zone] of this.shapes) { shape.style.fill = fillOf(zone); shape.classList.toggle("training", busy.has(zone.zone)); shape.firstChild.textContent = this.words(zone); }
    this.inside.forEach((zone, i) => {
      this.points[i].style.fill = fillOf(zone);
      this.points[i].classList.toggle("training", busy.has(zone.zone));
      const text = this.words(zone);
      this.points[i].firstChild.textContent = text;
      this.points[i].setAttribute("aria-label", text);
    });
    if (this.zone) $("zone-name").textContent = this.words(this.zone);
    const sorted = [...this.data.zones].sort((a, b) => a.intensity_g_per_kwh[slot] - b.intensity_g_per_kwh[slot]);
    const head = el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Zone"), el("th", { scope: "col" }, "g/kWh"), el("th", { scope: "col" }, "Clients")));
    const body = el("tbody", {}, ...sorted.map((zone) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = fillOf(zone);
      const name = zone.longitude == null ? `${printable(zone.zone)} (not on the map)` : printable(zone.zone);
      return el("tr", { class: busy.has(zone.zone) ? "training" : "" }, el("td", {}, swatch, name, busy.has(zone.zone) ? " · trains" : ""), el("td", {}, zone.intensity_g_per_kwh[slot].toFixed(0)), el("td", {}, String(zone.clients)));
    }));
    $("zones").replaceChildren(head, body);
    legend($("map-legend"), [["heat", `${Math.round(this.low)} to ${Math.round(this.high)} g CO2e/kWh over all hours; a larger point has more clients; a thick green outline trains in this hour. Choose a zone to see its clients`]]);
  }

  play(on) {
    this.playing = on;
    clearInterval(this.clock);
    $("play").textContent = on ? "Pause" : "Play";
    $("play").setAttribute("aria-pressed", String(on));
    if (on) this.clock = setInterval(() => { $("hour").value = (Number($("hour").value) + 1) % this.data.slots; this.colours(); }, PLAY_MS);
  }
}
