// Drawing, continued: matrices, clients as rows of dots, and who helps whom as a graph.
"use strict";

const LETTER = 6.4; // the width of one at 12 px, roughly

// spec: label, rows, columns, rowsName, columnsName, fill(i, j) -> [variable, opacity], text(i, j), title(i, j),
// digits (of the longest text), value(i, j), lines(i, j), own (outline the diagonal), chosen (a row to point out)
function heatmap(host, spec) {
  host.table = [[`${spec.rowsName} \\ ${spec.columnsName}`, ...spec.columns], ...spec.rows.map((name, i) => [name, ...spec.columns.map((_, j) => spec.value(i, j))])];
  const longest = Math.max(...spec.rows.map((name) => name.length));
  const letters = Math.min(longest, host.clientWidth < 500 ? 9 : 20);
  const left = 22 + letters * LETTER + 6;
  const cell = Math.min(46, (Math.max(240, host.clientWidth) - left - 6) / spec.columns.length);
  const tall = Math.min(cell, Math.max(16, 420 / spec.rows.length));
  const flat = spec.columns.every((name) => name.length * LETTER < cell - 4);
  const above = 26 + (flat ? 14 : Math.min(14, Math.max(...spec.columns.map((n) => n.length))) * LETTER + 4);
  const board = canvas(host, Math.ceil(above + tall * spec.rows.length + 4), spec.label);
  const { picture } = board;
  const wide = cell * spec.columns.length;
  shape("text", { class: "name", x: left + wide / 2, y: 14, "text-anchor": "middle" }, picture, spec.columnsName);
  const turned = `translate(12,${above + (tall * spec.rows.length) / 2}) rotate(-90)`;
  shape("text", { class: "name", transform: turned, "text-anchor": "middle" }, picture, spec.rowsName);
  spec.columns.forEach((name, j) => columnName(picture, name, left + cell * (j + 0.5), above - 6, flat, cell));
  spec.rows.forEach((name, i) => {
    const weight = i === spec.chosen ? "tick chosen" : "tick";
    const place = { class: weight, x: left - 6, y: above + tall * (i + 0.5) + 4, "text-anchor": "end" };
    if (tall >= 11 || i % Math.ceil(12 / tall) === 0) shape("text", place, picture, shortened(name, letters));
    spec.columns.forEach((_, j) => drawCell(picture, spec, i, j, left + cell * j, above + tall * i, cell, tall));
  });
  if (spec.chosen !== undefined) {
    const row = { class: "chosen-row", x: left, y: above + tall * spec.chosen, width: wide, height: tall };
    shape("rect", row, picture);
  }
  readCells(board, spec, left, above, cell, tall);
}

function columnName(picture, name, x, y, flat, cell) {
  const text = shortened(name, flat ? 99 : 14);
  if (flat) shape("text", { class: "tick", x, y, "text-anchor": "middle" }, picture, text);
  else if (cell >= 11) shape("text", { class: "tick", transform: `translate(${x + 4},${y}) rotate(-90)` }, picture, text);
}

function drawCell(picture, spec, i, j, x, y, wide, tall) {
  const [colour, opacity] = spec.fill(i, j);
  const place = { x: x + 0.5, y: y + 0.5, width: Math.max(0.5, wide - 1), height: Math.max(0.5, tall - 1), rx: 2 };
  shape("rect", { class: "hole", ...place }, picture);
  const look = { fill: `var(${colour})`, "fill-opacity": opacity.toFixed(3), "data-cell": `${i},${j}` };
  shape("rect", { ...place, ...look }, picture);
  if (spec.own && i === j) shape("rect", { class: "own", ...place }, picture);
  if (wide >= 8 + 6 * spec.digits && tall >= 15) {
    const middle = { x: x + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle" };
    shape("text", { class: opacity > 0.55 ? "number on-strong" : "number", ...middle }, picture, spec.text(i, j));
  }
}

function readCells(board, spec, left, above, cell, tall) {
  const [rows, columns] = [spec.rows.length, spec.columns.length];
  const places = spec.rows.flatMap((_, i) =>
    spec.columns.map((_, j) => ({
      x: left + cell * (j + 0.5),
      y: above + tall * i,
      title: spec.title(i, j),
      rows: spec.lines(i, j),
      point: (cursor) => shape("rect", { x: left + cell * j, y: above + tall * i, width: cell, height: tall }, cursor),
    })),
  );
  const find = (px, py) => {
    const [i, j] = [Math.floor((py - above) / tall), Math.floor((px - left) / cell)];
    return i >= 0 && i < rows && j >= 0 && j < columns ? i * columns + j : undefined;
  };
  readable(board, places, find, (at, dx, dy) => at + dx + dy * columns);
}

// --- Each client a row, each method a dot ---

// spec: label, rows, xName, xText, valueText, floor, ceiling, least, series: [{label, style, values, heavy}], base: values to measure from
function dotRows(host, spec) {
  host.table = [["silo", ...spec.series.map((s) => s.label)], ...spec.rows.map((name, i) => [name, ...spec.series.map((s) => s.values[i])])];
  host.legend = spec.series;
  const tall = 30;
  const letters = Math.min(Math.max(...spec.rows.map((name) => name.length)), host.clientWidth < 500 ? 10 : 22);
  const left = letters * LETTER + 16;
  const board = canvas(host, spec.rows.length * tall + 52, spec.label);
  const values = [...spec.series.flatMap((s) => s.values), ...(spec.base || [])].filter((v) => v !== null).map((v) => Math.max(v, spec.floor ?? -Infinity));
  if (!values.length) return nothing(board);
  const box = { left, right: board.width - 14, top: 6, bottom: 6 + spec.rows.length * tall };
  const [least, most] = widened(Math.min(...values), Math.max(...values), spec);
  const room = (most - least || 1) * 0.04;
  const [low, high] = [least - room, most + room];
  const x = scale(low, high, box.left, box.right, false, low + room);
  const y = (i) => box.top + (i + 0.5) * tall;
  const xTicks = ticksBetween(low, Math.min(high, spec.ceiling ?? Infinity), Math.max(3, Math.floor((box.right - left) / 90)));
  const grid = { y1: box.top, y2: box.bottom };
  for (const tick of xTicks) shape("line", { class: "grid", x1: x(tick), x2: x(tick), ...grid }, board.picture);
  axes(board, box, x, y, { ...spec, xTicks, yTicks: [] });
  if (low < 0 && high > 0) shape("line", { class: "axis", x1: x(0), x2: x(0), ...grid }, board.picture);
  spec.rows.forEach((name, i) => dotRow(board.picture, spec, i, name, letters, left, x, y(i), box.right));
  const places = spec.rows.map((name, i) => ({ x: x(high) / 2 + left / 2, y: y(i) - 6, ...rowReading(spec, i, name, box, y(i), tall) }));
  const find = (_, py) => Math.max(0, Math.min(spec.rows.length - 1, Math.floor((py - box.top) / tall)));
  readable(board, places, find, (at, dx, dy) => at + dx + dy);
}

function dotRow(picture, spec, i, name, letters, left, x, y, right) {
  const words = { class: i === spec.chosen ? "tick chosen" : "tick", x: left - 8, y: y + 4, "text-anchor": "end" };
  shape("text", words, picture, shortened(name, letters));
  shape("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }, picture);
  const heavy = spec.series.find((s) => s.heavy);
  if (heavy && spec.base && heavy.values[i] !== null && spec.base[i] !== null) {
    const link = { x1: x(spec.base[i]), x2: x(heavy.values[i]), y1: y, y2: y, stroke: heavy.style.colour };
    shape("line", { class: "link", ...link }, picture);
  }
  const apart = Math.min(4, 18 / spec.series.length); // one above the other, so that equals do not hide each other
  spec.series.forEach((s, k) => {
    if (s.values[i] === null) return;
    const height = y + (k - (spec.series.length - 1) / 2) * apart;
    mark(picture, x(s.values[i]), height, s.heavy ? 5.5 : 4, s.style, { "data-series": s.label, "stroke-width": 2 });
  });
}

function rowReading(spec, i, name, box, y, tall) {
  const known = spec.series.filter((s) => s.values[i] !== null).sort((a, b) => b.values[i] - a.values[i]);
  return {
    title: name,
    rows: known.map((s) => ({ style: s.style, label: shortened(s.label, 34), value: spec.valueText(s.values[i]) })),
    point: (cursor) => shape("rect", { x: 2, y: y - tall / 2 + 2, width: box.right, height: tall - 4, rx: 4 }, cursor),
  };
}

// --- Who helps whom ---

const HELPERS_SHOWN = 2;
const ALIKE = 0.01; // a difference of this share is none

// spec: label, names, weights[i][j] (what i takes from j), sizes, chosen, choose(i), valueText
function helpGraph(host, spec) {
  host.table = [["who is helped \\ who helps", ...spec.names], ...spec.names.map((name, i) => [name, ...spec.weights[i]])];
  const letters = host.clientWidth < 500 ? 9 : 13;
  const words = Math.min(letters, Math.max(...spec.names.map((n) => n.length))) * LETTER * 1.1;
  const radius = Math.max(60, Math.min(210, host.clientWidth / 2 - words - 26));
  const side = 2 * radius + 88;
  const board = canvas(host, side, spec.label);
  const count = spec.names.length;
  const nodes = spec.names.map((name, i) => {
    const angle = (2 * Math.PI * i) / count - Math.PI / 2;
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    const size = 5 + 11 * Math.sqrt(spec.sizes[i] / Math.max(...spec.sizes));
    return { name, cos, sin, size, x: board.width / 2 + radius * cos, y: side / 2 + radius * sin };
  });
  const edges = strongest(spec.weights);
  const most = Math.max(...edges.map((e) => e.weight), 1e-9);
  edges.sort((a, b) => (a.to === spec.chosen) - (b.to === spec.chosen) || a.weight - b.weight);
  for (const edge of edges) drawArrow(board, nodes, edge, most, edge.to === spec.chosen);
  nodes.forEach((node, i) => drawNode(board.picture, node, i, spec, letters));
  const places = nodes.map((node, i) => ({
    x: node.x,
    y: node.y,
    title: `${node.name} takes most from`,
    rows: helpersOf(spec.weights[i], i).slice(0, 4).map((j) => ({ label: spec.names[j], value: spec.valueText(spec.weights[i][j]) })),
    point: (cursor) => shape("circle", { cx: node.x, cy: node.y, r: node.size + 4 }, cursor),
  }));
  const find = (px, py) => nodes.findIndex((n) => Math.hypot(n.x - px, n.y - py) < n.size + 14);
  readable(board, places, (px, py) => (find(px, py) < 0 ? undefined : find(px, py)), (at, dx, dy) => at + dx + dy);
}

function helpersOf(row, own) {
  return row.map((_, j) => j).filter((j) => j !== own && row[j] > 0).sort((a, b) => row[b] - row[a]);
}

// Two helpers of each, and whoever helps as much as the second: of equals none is left out.
function strongest(weights) {
  return weights.flatMap((row, to) => {
    const helpers = helpersOf(row, to);
    const least = (1 - ALIKE) * row[helpers[Math.min(HELPERS_SHOWN, helpers.length) - 1]];
    return helpers.filter((from) => row[from] >= least).map((from) => ({ from, to, weight: row[from] }));
  });
}

function drawArrow(board, nodes, edge, most, chosen) {
  const [a, b] = [nodes[edge.from], nodes[edge.to]];
  const bend = 0.72; // towards the middle, so that there and back are two lines
  const side = [(b.y - a.y) * 0.08, (a.x - b.x) * 0.08];
  const [cx, cy] = [board.width / 2, board.height / 2];
  const control = [cx + ((a.x + b.x) / 2 - cx) * bend + side[0], cy + ((a.y + b.y) / 2 - cy) * bend + side[1]];
  const angle = Math.atan2(b.y - control[1], b.x - control[0]);
  const width = 1 + (5 * edge.weight) / most;
  const head = 6 + 1.6 * width;
  const back = (d) => [b.x - (b.size + 2 + d) * Math.cos(angle), b.y - (b.size + 2 + d) * Math.sin(angle)];
  const end = back(head - 1);
  const group = shape("g", { class: chosen ? "help chosen" : "help", "data-edge": `${edge.from},${edge.to}` }, board.picture);
  const line = `M${a.x},${a.y}Q${control[0]},${control[1]} ${end[0]},${end[1]}`;
  shape("path", { d: line, fill: "none", "stroke-width": width }, group);
  const tip = `translate(${back(0)[0]},${back(0)[1]}) rotate(${(angle * 180) / Math.PI})`;
  shape("path", { class: "head", d: `M0,0L${-head},${-head / 2.2}V${head / 2.2}z`, transform: tip }, group);
}

function drawNode(picture, node, i, spec, letters) {
  const look = { class: i === spec.chosen ? "node chosen" : "node", cx: node.x, cy: node.y, r: node.size };
  shape("circle", look, picture).onclick = () => spec.choose(i);
  const anchor = Math.abs(node.cos) < 0.3 ? "middle" : node.cos > 0 ? "start" : "end";
  const away = node.size + 7;
  const place = { x: node.x + away * node.cos, y: node.y + away * node.sin + 4 + 6 * node.sin, "text-anchor": anchor };
  const words = { class: i === spec.chosen ? "tick chosen" : "tick", ...place };
  shape("text", words, picture, shortened(node.name, letters)).onclick = () => spec.choose(i);
}
