// The first screen: what came out in words, in a few figures, and method by method.
"use strict";

function drawHeader() {
  byId("title").textContent = data.title;
  byId("score-meaning").textContent = data.score.meaning;
  byId("score-title").textContent = `Test ${data.score.title}`;
  byId("traffic-title").textContent = `Test ${data.score.title} against traffic`;
  byId("dealt-title").textContent = `Where each ${data.noun} goes`;
  byId("holdings").hidden = !data.by_class;
  byId("story").replaceChildren();
  byId("left-out").hidden = !data.left_out.length;
  byId("left-out").textContent = `Left out: ${data.left_out.join("; ")}.`;
  for (const sentences of [data.overview, focus().story]) if (sentences.length) element("p", {}, byId("story"), sentences.join(" ").replaceAll(" %", "\u00a0%"));
  drawTiles();
  drawHeadline();
}

function drawTiles() {
  const run = focus();
  const name = data.score.title === "accuracy" ? "right on average" : `${data.score.title} on average`;
  const unit = data.score.percent ? " points" : "";
  const over = run.runs.length ? `: ${seedsText(run)}` : "";
  const tiles = [[spreadText(run.best), `${name}, at the best round${over}`]];
  if (run.alone !== null && run.best) {
    const noise = run.apart_from_alone ? "" : ": level, within noise";
    tiles.push([`${gainText(run.best.mean - run.alone)}${unit}`, `over training alone, on average${noise}`]);
  }
  const low = run.clients.reduce((at, value, i) => (value !== null && (at < 0 || value < run.clients[at]) ? i : at), -1);
  if (low >= 0) tiles.push([scoreText(run.clients[low]), `for the worst-off, ${shortened(data.clients[low], 40)}${casesText(run, low)}`]);
  tiles.push([String(data.clients.length), data.clients.length > 1 ? "silos" : "silo"]);
  tiles.push([`${run.scores.length}${run.scores.length < run.planned ? ` of ${run.planned}` : ""}`, `rounds in ${duration(run.seconds)}`]);
  byId("tiles").replaceChildren();
  for (const [value, name] of tiles) {
    const tile = element("div", {}, byId("tiles"));
    element("dt", {}, tile, name.replaceAll(" %", "\u00a0%"));
    element("dd", {}, tile, value);
  }
}

function casesText(view, i) {
  if (!view.intervals || !view.intervals[i]) return "";
  const [low, high] = view.intervals[i].map((bound) => percent(bound, 0));
  return `, of ${data.tests[i].toLocaleString("en")} test cases: likely ${low} to ${high}`;
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function drawHeadline() {
  const table = byId("headline");
  const hasAlone = data.methods.some((method) => method.gains);
  const columns = [
    [`Method${data.methods.some((method) => method.runs.length) ? ", mean ± sd of its seeds" : ""}`, ""],
    [`Mean ${data.score.title}, best round`, `${data.score.term}: the mean over silos at the round where it is highest on test data`],
  ];
  if (data.ranking) columns.push([`Beside ${shortened(data.ranking.best, 30)}`, RANKED_BY]);
  if (data.commonest) columns.push(["Balanced accuracy", "the mean over classes of the share of each that is right, so that rare classes count as much as common ones"]);
  columns.push(["Last round", ""], ["Chosen by validation", "the round that validation data would have picked"], ["Worst silo", "the silo with the lowest score at the best round"]);
  if (hasAlone) columns.push(["Worse than alone", "how many silos, and how many of them surely: by more than the choice of their test cases explains"]);
  columns.push(["Sent a round", "by one silo, on average"], ["Received", "by one silo in a round, on average"], ["Time", "of one run"]);
  table.replaceChildren();
  const head = element("tr", {}, element("thead", {}, table));
  for (const [name, hint] of columns) headingCell(head, name, hint);
  const body = element("tbody", {}, table);
  const top = meanOf(bestMethod().best);
  for (const method of data.methods) {
    const row = element("tr", method.label === focus().label && data.methods.length > 1 ? { class: "chosen" } : {}, body);
    const title = element("th", { scope: "row" }, row, method.label);
    if (method.runs.length) element("small", {}, title, ` ${method.runs.length} seeds`);
    element("td", meanOf(method.best) === top ? { class: "best" } : {}, row, spreadText(method.best));
    for (const text of headlineCells(method, hasAlone)) element("td", {}, row, text);
  }
}

const RANKED_BY =
  "a paired t-test of the silos' differences, each averaged over seeds; apart only if chance would part methods in fewer " +
  "than 5 % of cases, divided by the number of methods compared with";

function headlineCells(method, hasAlone) {
  const cells = [];
  if (data.ranking) cells.push(data.ranking.ahead.includes(method.label) ? "behind" : data.ranking.level.includes(method.label) ? "level" : "–");
  if (data.commonest) cells.push(spreadText(method.balanced));
  for (const spread of [method.last, method.validation, method.worst]) cells.push(spreadText(spread));
  if (hasAlone) cells.push(method.gains ? worseText(method) : "–");
  return [...cells, bytesText(method.bytes_up), bytesText(method.bytes_down), duration(method.seconds)];
}

function worseText(method) {
  const worse = method.gains.map((gain) => gain !== null && gain < 0);
  const sure = worse.filter((is, i) => is && method.beyond_noise[i]).length;
  const count = worse.filter((is) => is).length;
  return `${count} of ${worse.length}${count && data.score.title === "accuracy" ? `, ${sure} surely` : ""}`;
}

// A heading; its hint is shown where a pointer rests, and below the table when it is tapped or reached by keyboard.
function headingCell(row, name, hint) {
  const cell = element("th", { scope: "col" }, row);
  if (!hint) return void (cell.textContent = name);
  const term = element("span", { class: "hint", title: hint, tabindex: 0 }, cell, name);
  const place = row.closest(".scroll").parentElement.querySelector(".explained");
  term.onfocus = () => (place.textContent = `${name}: ${hint}.`);
  term.onblur = () => (place.textContent = "");
}
