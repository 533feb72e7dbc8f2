// The Map view: a point for each zone, coloured by its intensity in the hour of the slider.
import { $, ask, colour, el, legend, mixed, onTheme, printable, showTrouble, slotTime } from "./base.js";
import { svg } from "./chart.js";
import { LAND } from "./land.js";

const REGIONS = { Europe: [-26, 33, 46, 72], "North America": [-130, 15, -55, 60], "Asia and Pacific": [65, -48, 180, 50], "South America": [-95, -56, -30, 14] };
const PLAY_MS = 160;

export class MapView {
  constructor() {
    $("hour").addEventListener("input", () => this.colours());
    $("play").addEventListener("click", () => this.play(!this.playing));
    onTheme(() => this.colours());
    new ResizeObserver(() => { if (this.data && $("world").clientWidth !== this.wide) this.draw(); }).observe($("world"));
  }

  async open(source) {
    this.play(false);
    this.data = await ask("/api/map", { source });
    $("hour").max = this.data.slots - 1;
    $("hour").value = Math.min(Number($("hour").value), this.data.slots - 1);
    const all = this.data.zones.flatMap((zone) => zone.intensity_g_per_kwh);
    this.low = all.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    this.placed = this.data.zones.filter((zone) => zone.longitude != null);
    const within = ([w, s, e, n]) => this.placed.filter((z) => z.longitude > w && z.longitude < e && z.latitude > s && z.latitude < n).length;
    const regions = Object.entries(REGIONS).filter(([, box]) => within(box) > 0 && within(box) < this.placed.length);
    this.box = null;
    $("regions").replaceChildren(...(regions.length ? [["All", null], ...regions] : []).map(([name, box]) => {
      const button = el("button", { type: "button", "aria-pressed": String(box === null) }, name);
      button.addEventListener("click", () => { this.box = box; for (const one of $("regions").children) one.setAttribute("aria-pressed", String(one === button)); this.draw(); });
      return button;
    }));
    this.draw();
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
    const scale = Math.min(wide / ((e - w) * squeeze), tall / (n - s));
    const x = (longitude) => wide / 2 + (longitude - (w + e) / 2) * squeeze * scale, y = (latitude) => tall / 2 - (latitude - (s + n) / 2) * scale;
    const root = svg("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "group", "aria-label": "Zones by intensity" });
    root.style.overflow = "hidden";
    for (const line of LAND) {
      const points = [];
      for (let i = 0; i < line.length; i += 2) points.push(`${x(line[i]).toFixed(1)},${y(line[i + 1]).toFixed(1)}`);
      root.append(svg("polygon", { class: "land", points: points.join(" ") }));
    }
    const inside = this.placed.filter((z) => z.longitude > w && z.longitude < e && z.latitude > s && z.latitude < n);
    const crowd = inside.length > 40, named = inside.length <= 30;
    this.points = this.placed.map((zone) => {
      const radius = (crowd ? 4.5 : 9) + Math.min(crowd ? 3 : 9, Math.sqrt(zone.clients - 1) * (crowd ? 0.6 : 1.6));
      const point = svg("circle", { class: "zone", cx: x(zone.longitude), cy: y(zone.latitude), r: radius, tabindex: "0", role: "img" });
      point.append(svg("title"));
      root.append(point);
      if (named) {
        const name = svg("text", { class: "name", x: x(zone.longitude) + radius + 4, y: y(zone.latitude) + 4 });
        name.textContent = printable(zone.zone);
        root.append(name);
      }
      if (zone.clients > 1 && !crowd) {
        const count = svg("text", { class: "count", x: x(zone.longitude), y: y(zone.latitude) + 4 });
        count.textContent = zone.clients;
        root.append(count);
      }
      return point;
    });
    $("world").replaceChildren(root);
    this.colours();
  }

  colours() {
    if (!this.data || !this.points) return;
    const slot = Number($("hour").value), [low, middle, high] = ["map-low", "map-middle", "map-high"].map(colour);
    const at = slotTime(this.data, slot);
    $("hour-out").value = at;
    $("hour").setAttribute("aria-valuetext", at);
    const share = (zone) => (zone.intensity_g_per_kwh[slot] - this.low) / (this.high - this.low || 1);
    const fillOf = (zone) => `rgb(${(share(zone) < 0.5 ? mixed(low, middle, 2 * share(zone)) : mixed(middle, high, 2 * share(zone) - 1)).join(" ")})`;
    this.placed.forEach((zone, i) => {
      this.points[i].style.fill = fillOf(zone);
      const text = `${printable(zone.zone)}: ${Math.round(zone.intensity_g_per_kwh[slot])} g/kWh, ${zone.clients} client${zone.clients === 1 ? "" : "s"}`;
      this.points[i].firstChild.textContent = text;
      this.points[i].setAttribute("aria-label", text);
    });
    const sorted = [...this.data.zones].sort((a, b) => a.intensity_g_per_kwh[slot] - b.intensity_g_per_kwh[slot]);
    const head = el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Zone"), el("th", { scope: "col" }, "g/kWh"), el("th", { scope: "col" }, "Clients")));
    const body = el("tbody", {}, ...sorted.map((zone) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = fillOf(zone);
      const name = zone.longitude == null ? `${printable(zone.zone)} (not on the map)` : printable(zone.zone);
      return el("tr", {}, el("td", {}, swatch, name), el("td", {}, zone.intensity_g_per_kwh[slot].toFixed(0)), el("td", {}, String(zone.clients)));
    }));
    $("zones").replaceChildren(head, body);
    legend($("map-legend"), [["heat", `${Math.round(this.low)} to ${Math.round(this.high)} g CO2e/kWh over all hours; a larger point has more clients`]]);
  }

  play(on) {
    this.playing = on;
    clearInterval(this.clock);
    $("play").textContent = on ? "Pause" : "Play";
    $("play").setAttribute("aria-pressed", String(on));
    if (on) this.clock = setInterval(() => { $("hour").value = (Number($("hour").value) + 1) % this.data.slots; this.colours(); }, PLAY_MS);
  }
}
