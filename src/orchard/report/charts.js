// Drawing: each chart is a function (host, spec) that fills a host element with one SVG and can be called again at
// any time. Colours are CSS variables, so light and dark need no redrawing. Text is always set as text.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const MARKERS = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
  (r) => `M${-r},${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0,${-1.2 * r}L${1.2 * r},${r}H${-1.2 * r}z`,
  (r) => `M0,${-1.4 * r}L${1.4 * r},0L0,${1.4 * r}L${-1.4 * r},0z`,
  (r) => `M0,${1.2 * r}L${1.2 * r},${-r}H${-1.2 * r}z`,
];

// Colour, dash and marker together: no two of the first forty are alike, and no one has to tell colours apart.
function styleOf(i) {
  return { colour: `var(--c${i % COLOURS})`, dash: DASHES[(i + Math.floor(i / COLOURS)) % 4], marker: MARKERS[i % 5] };
}

const ALONE = { colour: "var(--alone)", dash: "1 4", marker: (r) => `M0,${-1.6 * r}V${1.6 * r}` };

function element(tag, attributes = {}, parent = null, text = null) {
  return filled(document.createElement(tag), attributes, parent, text);
}

function shape(tag, attributes = {}, parent = null, text = null) {
  return filled(document.createElementNS(SVG, tag), attributes, parent, text);
}

function filled(node, attributes, parent, text) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function shortened(text, length) {
  return text.length <= length ? text : `${text.slice(0, Math.max(1, length - 1))}…`;
}

function swatch(style, parent) {
  const icon = shape("svg", { class: "swatch", width: 30, height: 12, "aria-hidden": "true" }, parent);
  const line = { x1: 1, x2: 29, y1: 6, y2: 6, stroke: style.colour, "stroke-width": 2, "stroke-dasharray": style.dash };
  shape("line", line, icon);
  mark(icon, 15, 6, 3.4, style);
}

function mark(parent, x, y, size, style, attributes = {}) {
  const look = { fill: style.colour, stroke: style.colour, transform: `translate(${x},${y})`, ...attributes };
  return shape("path", { d: style.marker(size), ...look }, parent);
}

// --- The canvas of a chart, and reading values from it with a pointer or with the keys ---

function canvas(host, height, label) {
  let frame = host.firstElementChild;
  if (!frame) {
    frame = element("div", { class: "chart" }, host);
    shape("svg", { role: "img", tabindex: 0 }, frame);
    element("div", { class: "tip", role: "status", hidden: "" }, frame);
    offerSaving(host);
  }
  const picture = frame.firstElementChild;
  const width = Math.max(240, host.clientWidth);
  picture.replaceChildren();
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  filled(picture, { ...size, "aria-label": `${label}. Arrow keys read the values.` }, null, null);
  return { picture, width, height, tip: frame.lastElementChild };
}

// `places` are what can be read, each {x, y, lines, rows}; `find` gives the index of the one nearest to a pointer,
// `step` the index after an arrow key.
function readable(board, places, find, step) {
  const { picture, tip, width } = board;
  const cursor = shape("g", { class: "cursor", "pointer-events": "none" }, picture);
  let at = picture.reading;
  const show = (index) => {
    at = picture.reading = index;
    cursor.replaceChildren();
    const place = places[index];
    tip.hidden = !place;
    if (!place) return;
    place.point(cursor);
    fillTip(tip, place);
    tip.style.left = `${Math.max(0, Math.min(place.x + 14, width - tip.offsetWidth))}px`;
    if (place.x + 14 + tip.offsetWidth > width) tip.style.left = `${Math.max(0, place.x - tip.offsetWidth - 14)}px`;
    tip.style.top = `${Math.max(0, place.y - tip.offsetHeight - 8)}px`;
  };
  picture.onpointermove = picture.onpointerdown = (event) => {
    const box = picture.getBoundingClientRect();
    show(find(event.clientX - box.left, event.clientY - box.top));
  };
  picture.onpointerleave = picture.onblur = () => show(undefined);
  picture.onkeydown = (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Escape") show(undefined);
    if (!(event.key in moves) || !places.length) return;
    event.preventDefault();
    show(at === undefined ? 0 : Math.max(0, Math.min(places.length - 1, step(at, ...moves[event.key]))));
  };
  if (at !== undefined) show(Math.min(at, places.length - 1));
}

function fillTip(tip, place) {
  tip.replaceChildren();
  element("strong", {}, tip, place.title);
  for (const row of place.rows) {
    const line = element("div", {}, tip);
    if (row.style) swatch(row.style, line);
    element("span", {}, line, row.label);
    element("b", {}, line, row.value);
  }
}

// --- Axes ---

function ticksBetween(low, high, wanted) {
  const rough = (high - low || 1) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((s) => s >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high, wanted) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) powers.push(10 ** power);
  const choices = [[1, 2, 5], [1, 3], [1]].map((digits) =>
    powers.flatMap((power) => digits.map((k) => k * power)).filter((tick) => tick >= low * 0.999 && tick <= high * 1.001),
  );
  return choices.find((ticks) => ticks.length <= wanted) || choices.at(-1);
}

function scale(low, high, from, to, log = false, least = -Infinity) {
  const f = log ? Math.log10 : (v) => v;
  const span = f(high) - f(low) || 1;
  return (v) => from + ((f(Math.max(v, least)) - f(low)) / span) * (to - from);
}

// The range of an axis, widened about its middle to the least that it may span.
function widened(low, high, { least = 0, floor = -Infinity, ceiling = Infinity }) {
  const more = Math.max(0, least - (high - low)) / 2;
  const [bottom, top] = [low - more, high + more];
  return [Math.max(floor, bottom - Math.max(0, top - ceiling)), Math.min(ceiling, top + Math.max(0, floor - bottom))];
}

function axes(board, box, x, y, spec) {
  const { picture } = board;
  for (const tick of spec.yTicks) {
    shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }, picture);
    shape("text", { class: "tick", x: box.left - 7, y: y(tick) + 4, "text-anchor": "end" }, picture, spec.yText(tick));
  }
  for (const tick of spec.xTicks) {
    const place = { class: "tick", x: x(tick), y: box.bottom + 18, "text-anchor": "middle" };
    shape("text", place, picture, spec.xText(tick));
  }
  shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }, picture);
  const middle = (box.left + box.right) / 2;
  shape("text", { class: "name", x: middle, y: box.bottom + 36, "text-anchor": "middle" }, picture, spec.xName);
}

// --- Lines against rounds or traffic ---

// spec: label, xName, xText, yText, xLog, zero (y starts there), floor and ceiling (y goes no further; what is lower is drawn there), least (that y spans),
// series: [{label, style, points: [[x, y]], band: [[x, low, high]], faint, heavy}],
// together: whether a reading shows all series at one x, or the nearest point alone.
function lineChart(host, spec) {
  const board = canvas(host, Math.round(Math.max(230, Math.min(330, host.clientWidth * 0.62))), spec.label);
  const box = { left: 50, right: board.width - 14, top: 12, bottom: board.height - 44 };
  host.table = seriesTable(spec);
  host.legend = spec.series;
  const points = spec.series.flatMap((s) => [...s.points, ...(s.band || []).flatMap(([x, a, b]) => [[x, a], [x, b]])]);
  if (!points.length) return nothing(board, spec.empty);
  const xs = points.map((p) => p[0]);
  const ys = points.map((p) => Math.max(p[1], spec.floor ?? -Infinity));
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  let [low, high] = widened(Math.min(...ys, spec.zero ?? Infinity), Math.max(...ys), spec);
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  if (low !== spec.zero) low -= room;
  low = Math.max(low, spec.floor ?? -Infinity);
  high = Math.min(high + room, spec.ceiling ?? Infinity);
  const x = scale(left, right, box.left + 6, box.right - 6, spec.xLog);
  const y = scale(low, high, box.bottom, box.top, false, low);
  const many = Math.max(3, Math.floor((box.right - box.left) / 75));
  const xTicks = spec.xLog ? logTicks(left, right, many) : ticksBetween(left, right, many).filter((t) => t % 1 === 0);
  axes(board, box, x, y, { ...spec, xTicks, yTicks: ticksBetween(low, high, 5) });
  if (low < 0) shape("line", { class: "axis", x1: box.left, x2: box.right, y1: y(0), y2: y(0) }, board.picture);
  for (const series of spec.series) drawBand(board.picture, series, x, y);
  spec.series.forEach((series, k) => drawLine(board.picture, series, x, y, k, spec.series.length));
  if (spec.together) readTogether(board, spec, x, y, box);
  else readNearest(board, spec, x, y);
}

// Series that share an x make a row; such as have x of their own, a row for each point.
function seriesTable(spec) {
  if (!spec.together) return [["series", spec.xName, "value"], ...spec.series.flatMap((s) => s.points.map((p) => [s.label, ...p]))];
  const xs = [...new Set(spec.series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
  const values = spec.series.map((s) => new Map(s.points));
  return [[spec.xName, ...spec.series.map((s) => s.label)], ...xs.map((x) => [x, ...values.map((known) => known.get(x))])];
}

function nothing(board, text) {
  const middle = { class: "name", x: board.width / 2, y: board.height / 2, "text-anchor": "middle" };
  shape("text", middle, board.picture, text || "nothing to show yet");
  readable(board, [], () => undefined, () => 0);
}

function pathThrough(points, x, y) {
  return points.map(([px, py], k) => `${k ? "L" : "M"}${x(px).toFixed(1)},${y(py).toFixed(1)}`).join("");
}

function drawBand(picture, series, x, y) {
  if (!series.band || !series.band.length) return;
  const upper = series.band.map(([px, , high]) => [px, high]);
  const lower = series.band.map(([px, low]) => [px, low]).reverse();
  const outline = `${pathThrough(upper, x, y)}${pathThrough(lower, x, y).replace("M", "L")}z`;
  shape("path", { class: "band", d: outline, fill: series.style.colour }, picture);
}

function drawLine(picture, series, x, y, index, count) {
  const { points, style } = series;
  if (!points.length) return;
  const look = { fill: "none", stroke: style.colour, "stroke-dasharray": style.dash, "data-series": series.label };
  const weight = { "stroke-width": series.heavy ? 3 : 1.8, "stroke-opacity": series.faint ? 0.45 : 1 };
  shape("path", { d: pathThrough(points, x, y), ...look, ...weight }, picture);
  const every = Math.max(1, Math.ceil(points.length / 6)); // a marker here and there, not at the same x for all
  const offset = Math.floor((every * index) / count);
  points.forEach(([px, py], k) => {
    if (k % every === offset % every) mark(picture, x(px), y(py), series.heavy ? 4 : 3.2, style, { "fill-opacity": series.faint ? 0.45 : 1 });
  });
}

function readTogether(board, spec, x, y, box) {
  const xs = [...new Set(spec.series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
  const known = spec.series.map((s) => new Map(s.points));
  const places = xs.map((at) => {
    const present = spec.series.map((s, k) => ({ s, value: known[k].get(at) })).filter((e) => e.value !== undefined);
    present.sort((a, b) => b.value - a.value);
    return {
      x: x(at),
      y: box.top + 60,
      title: spec.xTitle(at),
      rows: present.map((e) => ({ style: e.s.style, label: shortened(e.s.label, 34), value: spec.valueText(e.value) })),
      point: (cursor) => {
        shape("line", { x1: x(at), x2: x(at), y1: box.top, y2: box.bottom }, cursor);
        for (const e of present) mark(cursor, x(at), y(e.value), 4.5, e.s.style);
      },
    };
  });
  const find = (px) => xs.reduce((best, at, k) => (Math.abs(x(at) - px) < Math.abs(x(xs[best]) - px) ? k : best), 0);
  readable(board, places, find, (at, dx, dy) => at + dx + dy);
}

function readNearest(board, spec, x, y) {
  const places = spec.series.flatMap((s) =>
    s.points.map(([px, py], k) => ({
      x: x(px),
      y: y(py),
      title: s.label,
      rows: s.read(k),
      point: (cursor) => mark(cursor, x(px), y(py), 6, s.style),
    })),
  );
  const distance = (place, px, py) => Math.hypot(place.x - px, place.y - py);
  const find = (px, py) => places.reduce((b, p, k) => (distance(p, px, py) < distance(places[b], px, py) ? k : b), 0);
  readable(board, places, find, (at, dx, dy) => at + dx + dy);
}
