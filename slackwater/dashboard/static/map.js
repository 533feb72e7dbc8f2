// The Map view: countries and zones, coloured by intensity in the hour of the slider; zones that train then have a ring.
import { $, ask, colour, el, legend, local, mixed, onTheme, printable, shortened, slotIso, slotTime } from "./base.js";
import { svg } from "./chart.js";
import { exports } from "./export.js";
import { geoNaturalEarth1, geoPath } from "./vendor/d3-geo.js";
import { feature } from "./vendor/topojson.js";

const REGIONS = { Europe: [-26, 33, 46, 72], "North America": [-130, 15, -55, 60], "Asia and Pacific": [65, -48, 180, 50], "South America": [-95, -56, -30, 14] };
const PLAY_MS = 160;
const LEAST_DEGREES = 16;

export class MapView {
  /** `training(source, slot)` returns the zones that train then; `filter(zone)` shows a zone's clients; `noted()` is called on a change. */
  constructor(training, filter, noted) {
    Object.assign(this, { training, filter, noted, region: "All", zone: null });
    $("hour").addEventListener("input", () => { this.colours(); this.noted(); });
    $("zone-filter").addEventListener("click", () => this.filter(this.zone.zone));
    $("zone-add").addEventListener("click", () => document.dispatchEvent(new CustomEvent("slackwater:add-site", { detail: { zone: this.zone.zone } })));
    exports($("map-export"), "map", { picture: () => $("world").querySelector("svg"), notes: () => [`${slotTime(this.data, Number($("hour").value))}: ${Math.round(this.low)} to ${Math.round(this.high)} g CO2e/kWh over all hours, from pale to dark. Green outline: trains in this hour.`, $("origin").textContent], rows: () => this.data && this.rows() });
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
    this.table();
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
    return [["zone", "clients", "longitude", "latitude", ...times.map((slot) => `${slotIso(this.data, slot)}, g/kWh`)],
      ...zones.map((z) => [z.zone, z.clients, z.longitude, z.latitude, ...z.intensity_g_per_kwh])];
  }

  /** Make the table, a line for each zone; `colours` fills it. */
  table() {
    const head = ["Zone", "g/kWh", "Clients"].map((name) => el("th", { scope: "col" }, name));
    this.lines = new Map(this.data.zones.map((zone) => {
      const swatch = el("span", { class: "swatch" }), words = el("span"), name = el("button", { type: "button", class: "plain" }, swatch, words), grams = el("td");
      name.addEventListener("click", () => this.choose(zone));
      return [zone, { line: el("tr", {}, el("td", {}, name), grams, el("td", {}, String(zone.clients))), swatch, name, words, grams }];
    }));
    this.body = el("tbody");
    $("zones").replaceChildren(el("thead", {}, el("tr", {}, ...head)), this.body);
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

  /** Return the outline of a country around the place of its zone, without what lies overseas. */
  outline(zone) {
    const shape = zone.whole_country && this.land.find((country) => country.id === zone.country)?.geometry;
    const parts = !shape ? [] : shape.type === "Polygon" ? [shape.coordinates[0]] : shape.coordinates.map((part) => part[0]), within = (at, value, part) => Math.min(...part.map((p) => p[at])) <= value && value <= Math.max(...part.map((p) => p[at]));
    return parts.find((part) => within(0, zone.longitude, part) && within(1, zone.latitude, part)) ?? [];
  }

  /** Return the shown area: the region, or all zones with a margin. */
  frame() {
    if (this.box) return this.box;
    const places = this.placed.flatMap((zone) => [[zone.longitude, zone.latitude], ...this.outline(zone)]);
    if (!places.length) return [-170, -56, 180, 75];
    const span = (at) => { const all = places.map((place) => place[at]), low = Math.min(...all), high = Math.max(...all), room = Math.max(1.5, (high - low) * 0.06, (LEAST_DEGREES - high + low) / 2); return [low - room, high + room]; };
    const [[w, e], [s, n]] = [span(0), span(1)];
    return [Math.max(-180, w), Math.max(-60, s), Math.min(180, e), Math.min(80, n)];
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
    this.countries = svg("g");
    root.append(this.countries);
    for (const country of this.land) {
      const shape = svg("path", { class: "land", d: path(country) ?? "" }), zone = whole.get(country.id);
      if (zone) { this.shapes.push([shape, zone]); shape.append(svg("title")); this.clickable(shape, zone); }
      this.countries.append(shape);
    }
    if (document.documentElement.dataset.edit) for (const zone of this.data.further) { // zones of the data in which no site is yet
      const point = svg("circle", { class: "zone further", cx: x(zone.longitude, zone.latitude), cy: y(zone.longitude, zone.latitude), r: 4, tabindex: "0", role: "button", "aria-label": `${zone.zone}: no client` }, svg("title"));
      point.firstChild.textContent = `${zone.zone}: no client`;
      this.clickable(point, zone);
      root.append(point);
    }
    const inside = this.inside = this.placed.filter((z) => z.longitude > w && z.longitude < e && z.latitude > s && z.latitude < n);
    const crowd = inside.length > 40, taken = [], names = svg("g");
    this.points = inside.map((zone) => {
      const radius = (crowd ? 4.5 : 9) + Math.min(crowd ? 3 : 9, Math.sqrt(zone.clients - 1) * (crowd ? 0.6 : 1.6));
      const point = svg("circle", { class: "zone", cx: x(zone.longitude, zone.latitude), cy: y(zone.longitude, zone.latitude), r: radius, tabindex: "0", role: "button" });
      this.clickable(point, zone);
      point.append(svg("title"));
      root.append(point);
      taken.push([x(zone.longitude, zone.latitude) - radius, y(zone.longitude, zone.latitude) - radius, 2 * radius, 2 * radius]);
      if (zone.clients > 1 && !crowd) {
        const count = svg("text", { class: "count", x: x(zone.longitude, zone.latitude), y: y(zone.longitude, zone.latitude) + 4 });
        count.textContent = zone.clients;
        root.append(count);
      }
      return point;
    });
    if (inside.length <= wide / 16) inside.forEach((zone, i) => this.name(names, zone, taken, taken[i], wide));
    root.append(names);
    $("world").replaceChildren(root);
    this.colours();
  }

  /** Write a zone's name beside its point, or not at all where it would cover something. */
  name(box, zone, taken, [x, y, size], wide) {
    const words = shortened(zone.zone, 24), long = 7 * words.length, high = 13, middle = y + (size - high) / 2, centre = x + (size - long) / 2;
    const free = ([l, t]) => l >= 0 && l + long <= wide && taken.every(([x0, y0, w, h]) => l >= x0 + w + 3 || l + long + 6 <= x0 || t >= y0 + h || t + high <= y0);
    const place = [[x + size + 4, middle], [x - long - 4, middle], [centre, y + size + 2], [centre, y - high - 2]].find(free);
    if (!place) return;
    taken.push([...place, long, high]);
    const name = svg("text", { class: "name", x: place[0], y: place[1] + 11 });
    name.textContent = words;
    box.append(name);
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
    for (const [shape, zone] of this.shapes) { shape.style.fill = fillOf(zone); shape.classList.toggle("training", busy.has(zone.zone)); shape.firstChild.textContent = this.words(zone); if (busy.has(zone.zone)) this.countries.append(shape); }
    this.inside.forEach((zone, i) => {
      this.points[i].style.fill = fillOf(zone);
      this.points[i].classList.toggle("training", busy.has(zone.zone));
      const text = this.words(zone);
      this.points[i].firstChild.textContent = text;
      this.points[i].setAttribute("aria-label", text);
    });
    if (this.zone) $("zone-name").textContent = this.words(this.zone);
    const sorted = [...this.data.zones].sort((a, b) => a.intensity_g_per_kwh[slot] - b.intensity_g_per_kwh[slot]);
    for (const zone of sorted) {
      const { line, swatch, name, words, grams } = this.lines.get(zone), trains = busy.has(zone.zone);
      swatch.style.background = fillOf(zone);
      words.textContent = `${printable(zone.zone)}${zone.longitude == null ? " (not on the map)" : ""}${trains ? " · trains" : ""}`;
      name.setAttribute("aria-pressed", String(zone === this.zone));
      grams.textContent = zone.intensity_g_per_kwh[slot].toFixed(0);
      line.className = trains ? "training" : "";
      if (!this.body.contains(document.activeElement)) this.body.append(line); // a line that has the focus stays where it is
    }
    legend($("map-legend"), [["heat", `${Math.round(this.low)} to ${Math.round(this.high)} g CO2e/kWh over all hours.`], ["ring", "Trains in this hour."],
      ...(document.documentElement.dataset.edit && this.data.further.length ? [["empty", "No client yet."]] : []), ["", "A larger point has more clients. Choose a zone to see its clients or to add a site."]]);
  }

  play(on) {
    this.playing = on;
    clearInterval(this.clock);
    $("play").textContent = on ? "Pause" : "Play";
    $("play").setAttribute("aria-pressed", String(on));
    if (on) this.clock = setInterval(() => { $("hour").value = (Number($("hour").value) + 1) % this.data.slots; this.colours(); }, PLAY_MS);
  }
}
