// Shared by all views: requests to the server, elements, and safe text.

/** Create an element with attributes and children; children are text or nodes, never markup. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export const $ = (id) => document.getElementById(id);

/** Return a user's text on one line, without characters that hide text or turn the writing direction. */
export function printable(text) { return isolated(clean(text)); }

const clean = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu, "\uFFFD");

/** Keep a name that is written from right to left from moving the words around it. */
const isolated = (text) => (/[\u0590-\u08FF\uFB1D-\uFDFF\uFE70-\uFEFF]/.test(text) ? `\u2068${text}\u2069` : text);

export function shortened(text, most) {
  const letters = [...clean(text)];
  if (letters.length <= most) return isolated(letters.join(""));
  const head = Math.floor((most - 1) / 2);
  return isolated(letters.slice(0, head).join("") + "…" + letters.slice(letters.length - (most - 1 - head)).join(""));
}

export class Trouble extends Error {
  constructor(sentence, status, outdated) { super(sentence); this.status = status; this.outdated = outdated; }
}

/** Return an address relative to the page, so that it also works below a path prefix. */
export const local = (path) => path.replace(/^\//, "");

/** Offer a file for download. */
export function download(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Return rows as CSV; a leading sign of a formula becomes text. */
export function csv(rows) {
  const cell = (value) => { const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? ""); return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  return new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" });
}

/** Return JSON from the server, or throw Trouble with its error message; with a body it is a POST. */
export async function ask(path, query = {}, signal = undefined, body = undefined) {
  const fields = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value != null) fields.set(key, value);
  let response;
  try {
    response = await (body === undefined ? fetch(`${local(path)}?${fields}`, { signal }) : fetch(local(path), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));
  } catch (error) {
    if (error.name === "AbortError") throw new Trouble("stopped", 0, true);
    throw new Trouble("The dashboard does not answer. Is `slackwater serve` still running?", 0, false);
  }
  let content;
  try { content = await response.json(); } catch { content = { error: `The dashboard answered with status ${response.status} and no data.` }; }
  if (!response.ok) throw new Trouble(content.error, response.status, Boolean(content.outdated));
  return content;
}

export function showTrouble(error) {
  if (error && error.outdated) return;
  const box = $("trouble");
  box.hidden = !error;
  box.textContent = error ? error.message : "";
  if (error && !(error instanceof Trouble)) console.error(error);
}

/** Unpack rows of bits from the server. */
export function unpacked(packed) {
  const raw = atob(packed.data), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return { bytes, width: packed.row_bytes, rows: packed.rows, has: (row, slot) => (bytes[row * packed.row_bytes + (slot >> 3)] >> (7 - (slot & 7))) & 1 };
}

export function kilograms(kg) {
  if (kg == null || !Number.isFinite(kg)) return "–";
  if (Math.abs(kg) >= 10000) return Math.round(kg).toLocaleString("en");
  return kg === 0 ? "0" : String(Number(kg.toPrecision(4))).replace(/^-/, "−");
}

export function figure(value, digits = 4) {
  if (value == null) return "–";
  if (typeof value === "string") return value === "inf" ? "∞" : value;
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

export const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(1).replace(/^-(?!0\.0$)/, "−").replace(/^-/, "")} %`);
/** A number to four digits; a large one with all digits before the point, as in the terminal. */
const fourDigits = (value) => (Math.abs(value) >= 1e4 && Math.abs(value) < 1e9 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4))));
/** A score by the run's metric: a share in percent, any other number to four digits with its unit. */
export const scored = (metric, value) => (value == null ? "–" : metric.unit === "%" ? percent(value) : `${fourDigits(value)}${metric.unit ? ` ${printable(metric.unit)}` : ""}`);
/** The name of a metric; it says so if less is better. An axis has the unit too. */
export const metricName = (metric, unit = "") => `${printable(metric.name)}${unit && unit !== "%" ? `, ${printable(unit)}` : ""}${metric.higher_is_better ? "" : " (lower is better)"}`;
/** Ticks of an axis of scores. */
export const scoreTick = (metric) => (v) => (metric.unit === "%" ? `${Math.round(v * 1000) / 10} %` : String(Number(v.toPrecision(3))));

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const two = (number) => String(number).padStart(2, "0");

/** Return the start of a slot, or its number if slots have no times. */
export function slotTime(problem, slot, short = false) {
  if (!problem.start) return `slot ${slot}`;
  const at = new Date(Date.parse(problem.start) + slot * problem.slot_minutes * 60000);
  const day = `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}`;
  if (short) return at.getUTCHours() || at.getUTCMinutes() ? `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}` : day;
  return `${day} ${at.getUTCFullYear()}, ${two(at.getUTCHours())}:${two(at.getUTCMinutes())} UTC`;
}

/** Return the start of a slot as data files write it, or its number if slots have no times. */
export const slotIso = (problem, slot) => (problem.start ? `${new Date(Date.parse(problem.start) + slot * problem.slot_minutes * 60000).toISOString().slice(0, 16)}Z` : slot);

export function fill(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** Return a variable of the palette as [r, g, b]. */
export function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function mixed(low, high, share) {
  const s = Math.min(1, Math.max(0, share));
  return low.map((value, i) => Math.round(value + (high[i] - value) * s));
}

/** Call `redraw` when the theme changes. */
export function onTheme(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("slackwater:theme", redraw);
}

export function legend(box, items) {
  box.replaceChildren(...items.map(([kind, text]) => el("span", {}, el("i", { class: kind }), text)));
}
