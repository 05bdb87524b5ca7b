// The page: what the reader has chosen, the controls that choose it, and the figures drawn from both.
"use strict";

const byId = (id) => document.getElementById(id);
let data = JSON.parse(byId("data").textContent);

// Everything the reader can choose. New data leave it alone. `step` is null while the slider follows the last round,
// `seed` while the chosen method is shown as the mean over its seeds.
const chosen = { method: null, seed: null, client: 0, step: null, hiddenMethods: new Set(), hiddenClients: new Set(), gains: false };

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
const spreadText = (spread, digits = 1) => {
  if (!spread || spread.deviation === null) return scoreText(meanOf(spread), digits);
  const deviation = data.score.percent ? (100 * spread.deviation).toFixed(digits) : weight(spread.deviation, digits + 2);
  return `${scoreText(spread.mean, digits).replace(" %", "")} ± ${deviation}${data.score.percent ? " %" : ""}`;
};
const points = (gain) => (gain === null ? "–" : `${gain < 0 ? "−" : "+"}${Math.abs(100 * gain).toFixed(1)}`);
const BYTES = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]];
const bytesText = (bytes) => {
  const [unit, name] = BYTES.find(([least]) => bytes >= least) || BYTES.at(-1);
  return `${+(bytes / unit).toPrecision(3)} ${name}`;
};
const weight = (value, digits = 2) => (value <= -0.5 * 10 ** -digits ? "−" : "") + Math.abs(value).toFixed(digits);
const meanOf = (spread) => (spread ? spread.mean : null);
const known = (row) => row.filter((value) => value !== null);
const mean = (row) => known(row).reduce((a, b) => a + b, 0) / known(row).length;
// A client whose score is never defined does not keep the others' mean from being shown.
const whole = (run, row) => known(row).length > 0 && row.every((value, i) => value !== null || run.clients[i] === null);

// What is shown: every method, the chosen one as its run with the chosen seed, if there is one.
const shownOf = (method) => (method.label === chosen.method && method.runs.find((run) => run.seeds[0] === chosen.seed)) || method;
const shownMethods = () => data.methods.map(shownOf);
const focus = () => shownMethods().find((view) => view.label === chosen.method) || bestMethod();
const bestMethod = () => data.methods.reduce((a, b) => ((meanOf(b.best) ?? -Infinity) > (meanOf(a.best) ?? -Infinity) ? b : a));
const visibleMethods = () => shownMethods().filter((view) => !chosen.hiddenMethods.has(view.label));
const seedsText = (view) => (view.runs.length ? `mean ± sd of ${view.runs.length} seeds` : "");

function styleOfMethod(view) {
  if (view.method === "separate") return ALONE;
  return styleOf(data.methods.filter((other) => other.method !== "separate").findIndex((other) => other.label === view.label));
}

// The chosen method's relationships; where it learns none, APPLE's or whoever else's there are.
function related() {
  const having = shownMethods().filter((run) => run.relationships);
  return having.find((run) => run === focus()) || having.find((run) => run.method === "apple") || having[0];
}

// --- How training went, and what it costs ---

// What is drawn behind a line: ± one standard deviation over seeds, or of a single run the worst to the best client.
const bandOf = (values, deviations) => values.flatMap((v, r) => (v === null || deviations[r] === null ? [] : [[r + 1, v - deviations[r], v + deviations[r]]]));
const rangeOf = (run) => run.scores.flatMap((row, r) => (whole(run, row) ? [[r + 1, Math.min(...known(row)), Math.max(...known(row))]] : []));
const afterRound = (round) => `after round ${round}`;

function drawTraining() {
  const run = focus();
  const client = data.clients[chosen.client];
  const shown = visibleMethods();
  const series = shown.map((other) => ({
    label: other.label,
    style: styleOfMethod(other),
    heavy: other === run,
    points: other.scores.flatMap((row, r) => (whole(other, row) ? [[r + 1, mean(row)]] : [])),
    band: other.score_deviations ? bandOf(other.scores.map((row) => (whole(other, row) ? mean(row) : null)), other.score_deviations) : other === run ? rangeOf(other) : [],
  }));
  if (shown.includes(run) && data.clients.length > 1) {
    const own = run.scores.flatMap((row, r) => (row[chosen.client] === null ? [] : [[r + 1, row[chosen.client]]]));
    series.push({ label: `${run.label}: ${client}`, style: { ...styleOfMethod(run), dash: "1 2" }, faint: true, points: own });
  }
  const bands = [];
  if (shown.some((other) => other.score_deviations)) bands.push("bands: ± sd over seeds");
  if (!run.score_deviations) bands.push(`the band of ${run.label}: worst to best silo`);
  byId("score-note").textContent = `mean of the silos; ${bands.join("; ")}; the dotted line: ${client}`;
  const common = { xName: "round", xText: String, xTitle: afterRound, together: true, empty: emptyText(shown) };
  const text = { yText: axisText, valueText: (v) => scoreText(v, 2), floor: data.score.floor, ceiling: 1, least: leastSpan() };
  lineChart(byId("score"), { label: `Mean test ${data.score.title} by round`, series, ...common, ...text });
  const losses = shown.map((other) => ({
    label: other.label,
    style: styleOfMethod(other),
    heavy: other === run,
    points: other.loss.flatMap((value, r) => (value === null ? [] : [[r + 1, value]])),
    band: other.loss_deviations ? bandOf(other.loss, other.loss_deviations) : [],
  }));
  const plain = { yText: (v) => String(+v.toPrecision(3)), valueText: (v) => v.toPrecision(3), zero: 0 };
  lineChart(byId("loss"), { label: "Training loss by round", series: losses, ...common, ...plain });
}

// No axis of shares of test cases is narrower than two test cases of the average client.
const leastSpan = () => (data.score.title === "accuracy" ? (2 * data.clients.length) / data.tests.reduce((sum, n) => sum + n, 0) : 0);
const emptyText = (shown) => (shown.length ? "no round has ended yet" : "choose a method above");

function drawTraffic() {
  const senders = visibleMethods().filter((run) => run.traffic.some((bytes) => bytes > 0));
  byId("cost").hidden = !data.methods.some((run) => run.traffic.some((bytes) => bytes > 0));
  const series = senders.map((run) => {
    const rounds = run.scores.map((row, r) => r).filter((r) => whole(run, run.scores[r]) && run.traffic[r] > 0);
    return {
      label: run.label,
      style: styleOfMethod(run),
      heavy: run === focus(),
      points: rounds.map((r) => [run.traffic[r], mean(run.scores[r])]),
      read: (k) => [
        { label: data.score.title, value: scoreText(mean(run.scores[rounds[k]]), 2) },
        { label: "traffic of a silo", value: bytesText(run.traffic[rounds[k]]) },
        { label: "after round", value: String(rounds[k] + 1) },
      ],
    };
  });
  const alone = visibleMethods().find((run) => run.method === "separate" && run.best);
  const ends = series.flatMap((s) => s.points.map((p) => p[0]));
  if (alone && ends.length) {
    const line = [Math.min(...ends), Math.max(...ends)].map((at) => [at, alone.best.mean]);
    const read = () => [{ label: "at its best, without any traffic", value: scoreText(alone.best.mean, 2) }];
    series.push({ label: alone.label, style: ALONE, points: line, read });
  }
  const text = { xName: "traffic of one silo so far", xText: bytesText, yText: axisText, xLog: true };
  lineChart(byId("traffic"), { label: `Test ${data.score.title} against traffic`, series, floor: data.score.floor, ceiling: 1, least: leastSpan(), empty: emptyText(senders), ...text });
}

// --- What each client gets ---

function drawClients() {
  const possible = data.methods.some((run) => run.gains);
  const gains = chosen.gains && possible;
  byId("modes").hidden = !possible;
  const rows = data.clients.map((_, i) => i).filter((i) => !chosen.hiddenClients.has(i));
  const shown = visibleMethods().filter((run) => run.best && (!gains || run.gains));
  const alone = shownMethods().find((run) => run.method === "separate" && run.best);
  const pick = (values) => rows.map((i) => values[i]);
  const series = shown.map((run) => ({
    label: run.label,
    style: styleOfMethod(run),
    heavy: run === focus(),
    values: pick(gains ? run.gains : run.clients),
  }));
  byId("clients-note").textContent = gains
    ? "What each method adds to what a silo reaches by training alone, at the best round of each" + (data.score.percent ? ", in percentage points" : "")
    : `Test ${data.score.title} of each silo, at the best round of each method` + (possible ? `; the bar goes from training alone to ${focus().label}` : "");
  dotRows(byId("clients"), {
    label: gains ? "Gain of each silo over training alone" : `Test ${data.score.title} of each silo by method`,
    rows: rows.map((i) => data.clients[i]),
    chosen: rows.indexOf(chosen.client),
    series,
    base: gains ? rows.map(() => 0) : alone ? pick(alone.clients) : undefined,
    floor: gains ? undefined : data.score.floor,
    ceiling: gains ? undefined : 1,
    least: leastSpan(),
    xName: gains ? `${data.score.percent ? "percentage points" : "gain"} over training alone` : `test ${data.score.title}`,
    xText: (v) => (gains && data.score.percent ? String(+(100 * v).toFixed(1)) : axisText(v)),
    valueText: gains ? gainText : (v) => scoreText(v),
  });
  drawClientsTable();
}

function drawClientsTable() {
  const table = byId("clients-table");
  const methods = shownMethods();
  table.replaceChildren();
  const head = element("tr", {}, element("thead", {}, table));
  for (const name of ["Silo", "Training samples", "Test cases"]) headingCell(head, name, "");
  if (data.commonest) headingCell(head, "Commonest class", "how often always naming the silo's commonest class is right on its test cases");
  const counted = data.score.title === "accuracy" ? "in small: Wilson's 95 % interval for so many test cases" : "";
  for (const method of methods) headingCell(head, method.label, counted);
  const body = element("tbody", {}, table);
  data.clients.forEach((name, i) => {
    const row = element("tr", {}, body);
    element("th", { scope: "row" }, row, name);
    for (const count of [data.trained[i], data.tests[i]]) element("td", {}, row, count.toLocaleString("en"));
    if (data.commonest) element("td", {}, row, percent(data.commonest[i]));
    for (const method of methods) clientCell(element("td", {}, row), method, i);
  });
}

function clientCell(cell, method, i) {
  cell.textContent = scoreText(method.clients[i]);
  const interval = method.intervals && method.intervals[i];
  if (interval) element("div", { class: "fine" }, cell, `${percent(interval[0], 0)} to ${percent(interval[1], 0)}`);
  if (data.commonest && method.balanced_clients) element("div", { class: "fine" }, cell, `balanced ${percent(method.balanced_clients[i])}`);
  if (!method.gains || method.gains[i] === null) return;
  const lost = method.gains[i] < 0 && (!method.intervals || method.beyond_noise[i]);
  element("small", lost ? { class: "loss" } : {}, cell, ` (${gainText(method.gains[i])})`);
  if (method.gain_cases[i]) element("div", { class: "fine" }, cell, method.gain_cases[i]);
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
      rowsName: byClient ? "silo" : data.noun,
      columnsName: byClient ? data.noun : "silo",
      chosen: byClient ? chosen.client : undefined,
      digits: 3,
      value: (a, b) => data.counts[at(a, b)[0]][at(a, b)[1]],
      fill: (a, b) => ["--pos", share(...at(a, b))],
      text: (a, b) => (data.counts[at(a, b)[0]][at(a, b)[1]] ? `${Math.max(1, Math.round(100 * share(...at(a, b))))}` : ""),
      title: (a, b) => `${data.clients[at(a, b)[0]]}, ${data.noun} ${data.classes[at(a, b)[1]]}`,
      lines: (a, b) => {
        const [i, k] = at(a, b);
        return [
          { label: "samples", value: data.counts[i][k].toLocaleString("en") },
          { label: "of the silo's", value: percent(data.counts[i][k] / Math.max(1, down[i])) },
          { label: `of the ${data.noun}`, value: percent(data.counts[i][k] / Math.max(1, across[k])) },
        ];
      },
    });
  };
  map("held", "What each silo holds", true);
  map("dealt", `Where each ${data.noun} goes`, false);
}

// --- Run it again ---

function drawSettings() {
  const run = focus();
  const which = run.runs.length ? `${run.label}, a line for each seed` : run.label;
  const kept = run.folders.length ? `kept in ${run.folders.join(", ")}` : "not kept";
  if (run.deployed)
    byId("again-note").textContent =
      `${run.label} (${kept}) was made between institutions. This repeats it, with your startup kit for KIT; ` +
      "experiment.toml is the settings below and the table [deploy] that you had agreed on.";
  else if (run.commands.length) byId("again-note").textContent = `This repeats ${which} (${kept}).`;
  else byId("again-note").textContent = `The data of ${run.label} (${kept}) were handed over in Python; so must they be to repeat it.`;
  byId("command-box").hidden = !run.commands.length;
  byId("command").textContent = [...new Set(run.commands)].join("\n");
  byId("settings").textContent = run.settings;
}
