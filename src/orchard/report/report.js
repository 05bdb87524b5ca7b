// The page: what the reader has chosen, the controls that choose it, and the figures drawn from both.
"use strict";

const byId = (id) => document.getElementById(id);
let data = JSON.parse(byId("data").textContent);

// Everything the reader can choose. New data leave it alone. `step` is null while the slider follows the last round.
const chosen = { run: null, client: 0, step: null, hiddenRuns: new Set(), hiddenClients: new Set(), gains: false };

// A task's score: a share that is read in percent (accuracy, Dice), or a plain number (AUROC, R²).
const scoreText = (value, digits = 1) => {
  if (value === null || value === undefined) return "–";
  return data.score.percent ? percent(value, digits) : weight(value, digits + 2);
};
const axisText = (value) => (data.score.percent ? `${+(100 * value).toFixed(2)} %` : String(+value.toPrecision(3)));
const gainText = (gain) => {
  if (gain === null || data.score.percent) return points(gain);
  return `${gain < 0 ? "−" : "+"}${Math.abs(gain).toFixed(3)}`;
};
const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`);
const points = (gain) => (gain === null ? "–" : `${gain < 0 ? "−" : "+"}${Math.abs(100 * gain).toFixed(1)}`);
const megabytes = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toPrecision(3)} GB` : `${+(bytes / 1e6).toPrecision(3)} MB`);
const weight = (value, digits = 2) => (value <= -0.5 * 10 ** -digits ? "−" : "") + Math.abs(value).toFixed(digits);
const scoreOf = (selected) => (selected ? selected.score : null);
const known = (row) => row.filter((value) => value !== null);
const mean = (row) => known(row).reduce((a, b) => a + b, 0) / known(row).length;
// A client whose score is never defined does not keep the others' mean from being shown.
const whole = (run, row) => known(row).length > 0 && row.every((value, i) => value !== null || run.clients[i] === null);

const focus = () => data.runs.find((run) => run.label === chosen.run) || bestRun();
const bestRun = () => data.runs.reduce((a, b) => ((scoreOf(b.best) ?? -Infinity) > (scoreOf(a.best) ?? -Infinity) ? b : a));
const visibleRuns = () => data.runs.filter((run) => !chosen.hiddenRuns.has(run.label));

function styleOfRun(run) {
  if (run.method === "separate") return ALONE;
  return styleOf(data.runs.filter((other) => other.method !== "separate").indexOf(run));
}

// The chosen method's relationships; where it learns none, APPLE's or whoever else's there are.
function related() {
  const having = data.runs.filter((run) => run.relationships);
  return having.find((run) => run === focus()) || having.find((run) => run.method === "apple") || having[0];
}

// --- The first screen ---

function drawHeader() {
  byId("title").textContent = data.title;
  byId("score-meaning").textContent = data.score.meaning;
  byId("score-title").textContent = `Test ${data.score.title}`;
  byId("traffic-title").textContent = `Test ${data.score.title} against traffic`;
  byId("dealt-title").textContent = `Where each ${data.noun} goes`;
  byId("holdings").hidden = !data.by_class;
  byId("story").replaceChildren();
  for (const sentences of [data.overview, focus().story]) if (sentences.length) element("p", {}, byId("story"), sentences.join(" "));
  drawTiles();
  drawHeadline();
}

function drawTiles() {
  const run = focus();
  const name = data.score.title === "accuracy" ? "right on average, at the best round" : `${data.score.title} on average, at the best round`;
  const unit = data.score.percent ? " points" : "";
  const tiles = [[scoreText(scoreOf(run.best)), name]];
  if (run.alone !== null && run.best) tiles.push([`${gainText(run.best.score - run.alone)}${unit}`, "over training alone, on average"]);
  const low = run.clients.reduce((at, value, i) => (value !== null && (at < 0 || value < run.clients[at]) ? i : at), -1);
  if (low >= 0) tiles.push([scoreText(run.clients[low]), `for the worst-off, ${shortened(data.clients[low], 40)}`]);
  tiles.push([String(data.clients.length), data.clients.length > 1 ? "clients" : "client"]);
  tiles.push([`${run.scores.length}${run.scores.length < run.planned ? ` of ${run.planned}` : ""}`, `rounds in ${duration(run.seconds)}`]);
  byId("tiles").replaceChildren();
  for (const [value, name] of tiles) {
    const tile = element("div", {}, byId("tiles"));
    element("dt", {}, tile, name);
    element("dd", {}, tile, value);
  }
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function drawHeadline() {
  const table = byId("headline");
  const hasAlone = data.runs.some((run) => run.gains);
  const names = ["Method", data.score.best, "Last round", "Chosen by validation", "Worst client"];
  if (hasAlone) names.push("Worse than alone");
  names.push("Sent by a client a round", "Received", "Time");
  table.replaceChildren();
  const head = element("tr", {}, element("thead", {}, table));
  for (const name of names) element("th", { scope: "col" }, head, name);
  const body = element("tbody", {}, table);
  const top = scoreOf(bestRun().best);
  for (const run of data.runs) {
    const row = element("tr", run === focus() && data.runs.length > 1 ? { class: "chosen" } : {}, body);
    element("th", { scope: "row" }, row, run.label);
    element("td", scoreOf(run.best) === top ? { class: "best" } : {}, row, scoreText(scoreOf(run.best), 2));
    const lowest = known(run.clients).length ? Math.min(...known(run.clients)) : null;
    for (const value of [scoreOf(run.last), scoreOf(run.validation), lowest])
      element("td", {}, row, scoreText(value, 2));
    const worse = run.gains && run.gains.filter((gain) => gain !== null && gain < 0).length;
    if (hasAlone) element("td", {}, row, run.gains ? `${worse} of ${run.gains.length}` : "–");
    for (const text of [megabytes(run.bytes_up), megabytes(run.bytes_down), duration(run.seconds)]) element("td", {}, row, text);
  }
}

// --- How training went, and what it costs ---

const afterRound = (round) => `after round ${round}`;

function drawTraining() {
  const run = focus();
  const client = data.clients[chosen.client];
  const shown = visibleRuns();
  const series = shown.map((other) => ({
    label: other.label,
    style: styleOfRun(other),
    heavy: other === run,
    points: other.scores.flatMap((row, r) => (whole(other, row) ? [[r + 1, mean(row)]] : [])),
    band: other === run ? other.scores.flatMap((row, r) => (whole(other, row) ? [[r + 1, Math.min(...known(row)), Math.max(...known(row))]] : [])) : [],
  }));
  if (shown.includes(run) && data.clients.length > 1) {
    const own = run.scores.flatMap((row, r) => (row[chosen.client] === null ? [] : [[r + 1, row[chosen.client]]]));
    series.push({ label: `${run.label}: ${client}`, style: { ...styleOfRun(run), dash: "1 2" }, faint: true, points: own });
  }
  byId("score-note").textContent = `mean of the clients; the band is ${run.label}, worst to best client, the dotted line ${client}`;
  const common = { xName: "round", xText: String, xTitle: afterRound, together: true, empty: emptyText(shown) };
  const text = { yText: axisText, valueText: (v) => scoreText(v, 2), floor: data.score.floor, ceiling: 1 };
  lineChart(byId("score"), { label: `Mean test ${data.score.title} by round`, series, ...common, ...text });
  const losses = shown.map((other) => ({
    label: other.label,
    style: styleOfRun(other),
    heavy: other === run,
    points: other.loss.flatMap((value, r) => (value === null ? [] : [[r + 1, value]])),
  }));
  const plain = { yText: (v) => String(+v.toPrecision(3)), valueText: (v) => v.toPrecision(3), zero: 0 };
  lineChart(byId("loss"), { label: "Training loss by round", series: losses, ...common, ...plain });
}

const emptyText = (shown) => (shown.length ? "no round has ended yet" : "choose a method above");

function drawTraffic() {
  const senders = visibleRuns().filter((run) => run.traffic.some((bytes) => bytes > 0));
  byId("cost").hidden = !data.runs.some((run) => run.traffic.some((bytes) => bytes > 0));
  const series = senders.map((run) => {
    const rounds = run.scores.map((row, r) => r).filter((r) => whole(run, run.scores[r]) && run.traffic[r] > 0);
    return {
      label: run.label,
      style: styleOfRun(run),
      heavy: run === focus(),
      points: rounds.map((r) => [run.traffic[r], mean(run.scores[r])]),
      read: (k) => [
        { label: data.score.title, value: scoreText(mean(run.scores[rounds[k]]), 2) },
        { label: "traffic of a client", value: megabytes(run.traffic[rounds[k]]) },
        { label: "after round", value: String(rounds[k] + 1) },
      ],
    };
  });
  const alone = visibleRuns().find((run) => run.method === "separate" && run.best);
  const ends = series.flatMap((s) => s.points.map((p) => p[0]));
  if (alone && ends.length) {
    const line = [Math.min(...ends), Math.max(...ends)].map((at) => [at, alone.best.score]);
    const read = () => [{ label: "at its best, without any traffic", value: scoreText(alone.best.score, 2) }];
    series.push({ label: alone.label, style: ALONE, points: line, read });
  }
  const text = { xName: "traffic of one client so far", xText: megabytes, yText: axisText, xLog: true };
  lineChart(byId("traffic"), { label: `Test ${data.score.title} against traffic`, series, floor: data.score.floor, ceiling: 1, empty: emptyText(senders), ...text });
}

// --- What each client gets ---

function drawClients() {
  const possible = data.runs.some((run) => run.gains);
  const gains = chosen.gains && possible;
  byId("modes").hidden = !possible;
  const rows = data.clients.map((_, i) => i).filter((i) => !chosen.hiddenClients.has(i));
  const shown = visibleRuns().filter((run) => run.best && (!gains || run.gains));
  const alone = data.runs.find((run) => run.method === "separate" && run.best);
  const pick = (values) => rows.map((i) => values[i]);
  const series = shown.map((run) => ({
    label: run.label,
    style: styleOfRun(run),
    heavy: run === focus(),
    values: pick(gains ? run.gains : run.clients),
  }));
  byId("clients-note").textContent = gains
    ? "What each method adds to what a client reaches by training alone, at the best round of each" + (data.score.percent ? ", in percentage points" : "")
    : `Test ${data.score.title} of each client, at the best round of each method` + (possible ? `; the bar goes from training alone to ${focus().label}` : "");
  dotRows(byId("clients"), {
    label: gains ? "Gain of each client over training alone" : `Test ${data.score.title} of each client by method`,
    rows: rows.map((i) => data.clients[i]),
    chosen: rows.indexOf(chosen.client),
    series,
    base: gains ? rows.map(() => 0) : alone ? pick(alone.clients) : undefined,
    floor: gains ? undefined : data.score.floor,
    ceiling: gains ? undefined : 1,
    xName: gains ? `${data.score.percent ? "percentage points" : "gain"} over training alone` : `test ${data.score.title}`,
    xText: (v) => (gains && data.score.percent ? String(+(100 * v).toFixed(1)) : axisText(v)),
    valueText: gains ? gainText : (v) => scoreText(v),
  });
  drawClientsTable();
}

function drawClientsTable() {
  const table = byId("clients-table");
  table.replaceChildren();
  const head = element("tr", {}, element("thead", {}, table));
  for (const name of ["Client", "Samples", ...data.runs.map((run) => run.label)]) element("th", { scope: "col" }, head, name);
  const body = element("tbody", {}, table);
  data.clients.forEach((name, i) => {
    const row = element("tr", {}, body);
    element("th", { scope: "row" }, row, name);
    element("td", {}, row, data.sizes[i].toLocaleString("en"));
    for (const run of data.runs) {
      const cell = element("td", {}, row, scoreText(run.clients[i]));
      if (run.gains && run.gains[i] !== null) element("small", run.gains[i] < 0 ? { class: "loss" } : {}, cell, ` (${gainText(run.gains[i])})`);
    }
  });
}

// --- Who holds what ---

function drawHoldings() {
  const across = data.classes.map((_, k) => data.counts.reduce((sum, row) => sum + row[k], 0));
  const down = data.sizes;
  const map = (id, label, byClient) => {
    const share = (i, k) => data.counts[i][k] / Math.max(1, byClient ? down[i] : across[k]);
    const at = (a, b) => (byClient ? [a, b] : [b, a]);
    heatmap(byId(id), {
      label,
      rows: byClient ? data.clients : data.classes,
      columns: byClient ? data.classes : data.clients,
      rowsName: byClient ? "client" : data.noun,
      columnsName: byClient ? data.noun : "client",
      chosen: byClient ? chosen.client : undefined,
      digits: 3,
      fill: (a, b) => ["--pos", share(...at(a, b))],
      text: (a, b) => (data.counts[at(a, b)[0]][at(a, b)[1]] ? `${Math.max(1, Math.round(100 * share(...at(a, b))))}` : ""),
      title: (a, b) => `${data.clients[at(a, b)[0]]}, ${data.noun} ${data.classes[at(a, b)[1]]}`,
      lines: (a, b) => {
        const [i, k] = at(a, b);
        return [
          { label: "samples", value: data.counts[i][k].toLocaleString("en") },
          { label: "of the client's", value: percent(data.counts[i][k] / Math.max(1, down[i])) },
          { label: `of the ${data.noun}`, value: percent(data.counts[i][k] / Math.max(1, across[k])) },
        ];
      },
    });
  };
  map("held", "What each client holds", true);
  map("dealt", `Where each ${data.noun} goes`, false);
}

// --- Run it again ---

function drawSettings() {
  const run = focus();
  byId("again-note").textContent = run.command
    ? `This command repeats ${run.label} (kept in ${run.folder}).`
    : `The data of ${run.label} (kept in ${run.folder}) were handed over in Python; so must they be to repeat it.`;
  byId("command-box").hidden = !run.command;
  byId("command").textContent = run.command || "";
  byId("settings").textContent = run.settings;
}
