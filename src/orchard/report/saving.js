// Every figure can be saved: as it looks (SVG, PNG), and its data (CSV). Nothing is sent; the browser writes a file.
"use strict";

// What a figure takes from the page's style, and must bring along when it leaves the page.
const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

// Dots of a PNG for each of the page's: enough for print.
const SHARPNESS = 3;

function offerSaving(host) {
  const box = element("div", { class: "save" });
  host.closest("figure").prepend(box);
  const kinds = [["SVG", "image/svg+xml", svgOf], ["PNG", "image/png", pngOf], ["CSV", "text/csv", csvOf]];
  for (const [kind, type, made] of kinds) {
    const title = kind === "CSV" ? "Save the figure's data" : "Save this figure";
    const button = element("button", { type: "button", title, "data-saves": host.id }, box, kind);
    button.onclick = async () => save(`${host.id}.${kind.toLowerCase()}`, type, await made(host));
  }
}

function save(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function svgOf(host) {
  const picture = host.querySelector("svg");
  const copy = picture.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  picture.querySelectorAll("*").forEach((part, k) => {
    const style = getComputedStyle(part);
    for (const name of LOOKS) copies[k].setAttribute(name, style.getPropertyValue(name));
  });
  copy.querySelector(".cursor")?.remove();
  const paper = shape("rect", { width: "100%", height: "100%", fill: getComputedStyle(host.closest("figure")).backgroundColor });
  copy.prepend(paper);
  addLegend(copy, host.legend || []);
  return new XMLSerializer().serializeToString(copy);
}

async function pngOf(host) {
  const picture = new Image();
  picture.src = "data:image/svg+xml," + encodeURIComponent(svgOf(host));
  await picture.decode();
  const canvas = element("canvas", { width: SHARPNESS * picture.width, height: SHARPNESS * picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// On the page the series are named above the charts; a saved figure names them below itself.
function addLegend(picture, series) {
  const [width, height] = ["width", "height"].map((name) => Number(picture.getAttribute(name)));
  const columns = Math.max(1, Math.floor(width / 210));
  const tall = height + 20 * Math.ceil(series.length / columns);
  filled(picture, { height: tall, viewBox: `0 0 ${width} ${tall}` }, null, null);
  series.forEach(({ label, style }, k) => {
    const place = `translate(${12 + 210 * (k % columns)},${height + 20 * Math.floor(k / columns)})`;
    const entry = shape("g", { transform: place, color: colourOf("--ink") }, picture);
    const stroke = colourOf(style.colour.slice(4, -1));
    shape("line", { x1: 0, x2: 28, y1: 4, y2: 4, stroke, "stroke-width": 2, "stroke-dasharray": style.dash }, entry);
    mark(entry, 14, 4, 3.4, { ...style, colour: stroke });
    shape("text", { x: 36, y: 8, fill: "currentColor", "font-size": 12, "font-family": "sans-serif" }, entry, shortened(label, 26));
  });
}

const colourOf = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();

// A chart leaves its data in `host.table`: the columns' names, then the rows. No name becomes a spreadsheet's formula.
function csvOf(host) {
  const plain = (value) => (/^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value);
  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${plain(value).replaceAll('"', '""')}"` : plain(value));
  return host.table.map((row) => row.map((value) => quoted(String(value ?? ""))).join(",") + "\n").join("");
}

// --- A table that is wider than its place says so ---

function watchScrolling() {
  for (const box of document.querySelectorAll(".scroll")) {
    const look = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    box.onscroll = look;
    const observer = new ResizeObserver(look);
    observer.observe(box);
    observer.observe(box.firstElementChild);
  }
}
