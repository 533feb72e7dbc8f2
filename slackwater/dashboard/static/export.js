// Every picture as PNG and SVG, and its data as CSV.
import { css, csv, download, el, shortened, showTrouble, Trouble } from "./base.js";
import { svg } from "./chart.js";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];
const SCALE = 2;
const NOTE = 17;
const NOT_YET = "There is nothing to save yet. Wait until it is drawn, and press the button again.";

/** Return a copy that needs no style sheet, on the page's background, with lines of text below. */
function standalone(picture, notes) {
  const holder = el("div", { class: "chart offscreen" }), shown = picture.isConnected;
  if (!shown) { holder.append(picture); document.body.append(holder); }
  const copy = picture.cloneNode(true), [, , wide, tall] = picture.getAttribute("viewBox").split(" ");
  const high = Number(tall) + NOTE * notes.length, from = picture.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of STYLES) node.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style", "tabindex", "role"]) node.removeAttribute(name);
  });
  holder.remove();
  copy.removeAttribute("style");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", wide);
  copy.setAttribute("height", high);
  copy.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  copy.prepend(svg("rect", { width: wide, height: high, fill: css("paper"), stroke: "none" }));
  copy.append(svg("rect", { y: tall, width: wide, height: NOTE * notes.length, fill: css("paper"), stroke: "none" }), ...notes.map((text, at) => svg("text", { x: 6, y: Number(tall) + NOTE * (at + 1) - 5, fill: css("muted"), "font-size": "11px", "font-family": "system-ui, DejaVu Sans, sans-serif" }, shortened(text, Math.floor(wide / 5.8)))));
  return copy;
}

/** Paint the few kinds of elements that our pictures have; the security policy lets no picture be loaded from an address of its own. */
function paint(g, parent) {
  for (const node of parent.children) {
    const get = (name, otherwise = "") => node.getAttribute(name) ?? otherwise, number = (name) => Number.parseFloat(get(name, "0")) || 0;
    g.save();
    const [, kind, values] = get("transform").match(/(rotate|translate)\(([^)]*)\)/) ?? [], [a, b, c] = (values ?? "").split(/[ ,]+/).map(Number);
    if (kind === "translate") g.translate(a, b);
    if (kind === "rotate") { g.translate(b, c); g.rotate(a * Math.PI / 180); g.translate(-b, -c); }
    if (node.tagName === "g") paint(g, node);
    else if (node.tagName !== "title") {
      g.globalAlpha = Number(get("opacity", "1"));
      g.lineWidth = number("stroke-width");
      g.setLineDash(get("stroke-dasharray").split(/[ ,]+/).map(Number.parseFloat).filter(Number.isFinite));
      for (const way of node.tagName === "text" ? ["stroke", "fill"] : ["fill", "stroke"]) {
        if (get(way, "none") === "none") continue;
        g[`${way}Style`] = get(way);
        if (node.tagName === "text") {
          g.font = `${get("font-weight", "400")} ${get("font-size", "12px")} ${get("font-family", "sans-serif")}`;
          g.textAlign = { middle: "center", end: "right" }[get("text-anchor")] ?? "left";
          g[`${way}Text`](node.textContent, number("x"), number("y"));
          continue;
        }
        const path = new Path2D(node.tagName === "path" ? get("d") : undefined);
        if (node.tagName === "rect") path.rect(number("x"), number("y"), number("width"), number("height"));
        if (node.tagName === "circle") path.arc(number("cx"), number("cy"), number("r"), 0, 7);
        g[way](path);
      }
    }
    g.restore();
  }
}

/** Return pictures one below the other as one. */
export function stacked(pictures) {
  let top = 0, wide = 0;
  const parts = pictures.map((picture) => {
    const [, , w, h] = picture.getAttribute("viewBox").split(" ").map(Number), part = svg("g", { transform: `translate(0 ${top})` }, ...picture.childNodes);
    top += h + 8;
    wide = Math.max(wide, w);
    return part;
  });
  return svg("svg", { viewBox: `0 0 ${wide} ${top}` }, ...parts);
}

/** Put buttons into a box. `picture()` returns an SVG element, `notes()` lines for below it, and `rows()` the data; null: not there yet. */
export function exports(box, name, { picture = null, notes = () => [], rows }) {
  const drawn = () => { const found = picture(); if (!found?.getAttribute) throw new Trouble(NOT_YET); return found; };
  const save = { PNG: () => {
    const copy = standalone(drawn(), notes()), [, , wide, tall] = copy.getAttribute("viewBox").split(" ").map(Number), canvas = el("canvas", { width: Math.ceil(wide * SCALE), height: Math.ceil(tall * SCALE) }), g = canvas.getContext("2d");
    g.scale(SCALE, SCALE);
    paint(g, copy);
    canvas.toBlob((blob) => download(`${name}.png`, blob));
  }, SVG: () => download(`${name}.svg`, new Blob([new XMLSerializer().serializeToString(standalone(drawn(), notes()))], { type: "image/svg+xml" })), CSV: () => { const found = rows(); if (!found) throw new Trouble(NOT_YET); download(`${name}.csv`, csv(found)); } };
  const buttons = (picture ? ["PNG", "SVG", "CSV"] : ["CSV"]).map((kind) => {
    const button = el("button", { type: "button", "aria-label": `${name} as ${kind}` }, kind);
    button.addEventListener("click", () => { try { save[kind](); } catch (error) { showTrouble(error); } });
    return button;
  });
  box.replaceChildren(...buttons);
  box.classList.add("exports");
}
