// Who helps whom: the matrix at the slider's round, the graph, and the trajectories.
"use strict";

function stepOf(relationships) {
  const last = relationships.rounds.length - 1;
  return chosen.step === null ? last : Math.min(chosen.step, last);
}

function drawHelping() {
  const run = related();
  byId("helping").hidden = !run;
  if (!run) return;
  const missing = run === focus() ? "" : ` ${focus().label} learns no relationships; these are of ${run.label}.`;
  byId("helping-note").textContent =
    "A silo's model is a mixture of all silos' models. Each number is the weight of one of them: the larger, the " +
    "more that silo helps; near zero, it does not; below zero, its influence is taken out." + missing;
  drawSlider(run);
  drawMatrix(run);
  drawGraph(run);
  drawTrajectories(run);
}

function drawSlider(run) {
  const { rounds } = run.relationships;
  const step = stepOf(run.relationships);
  const slider = byId("round");
  slider.max = rounds.length - 1;
  slider.value = step;
  const text = rounds[step] ? `after round ${rounds[step]} of ${run.planned}` : "before the first round";
  byId("round-text").textContent = text;
  slider.setAttribute("aria-valuetext", text);
}

// Own weights are often far larger than those of others, so the colours reach up to the largest of the others.
function strongestOfOthers(run) {
  let most = 1e-9;
  for (const matrix of run.relationships.matrices)
    matrix.forEach((row, i) => row.forEach((value, j) => i !== j && (most = Math.max(most, Math.abs(value)))));
  return most;
}

function drawMatrix(run) {
  const { matrices } = run.relationships;
  const matrix = matrices[stepOf(run.relationships)];
  const most = strongestOfOthers(run);
  heatmap(byId("matrix"), {
    label: "Directed relationships",
    rows: data.clients,
    columns: data.clients,
    rowsName: "who is helped",
    columnsName: "who helps",
    own: true,
    digits: 5,
    value: (i, j) => matrix[i][j],
    chosen: chosen.client,
    fill: (i, j) => [matrix[i][j] < 0 ? "--neg" : "--pos", Math.min(1, Math.abs(matrix[i][j]) / most)],
    text: (i, j) => weight(matrix[i][j]),
    title: (i, j) => (i === j ? `${data.clients[i]}, of its own` : `${data.clients[i]} takes from ${data.clients[j]}`),
    lines: (i, j) => [{ label: "weight", value: weight(matrix[i][j], 4) }],
  });
  const negative = matrices.some((m) => m.some((row) => row.some((value) => value < 0)));
  drawScale(byId("matrix-scale"), most, negative);
}

function drawScale(host, most, negative) {
  host.replaceChildren();
  const steps = [1, 0.75, 0.5, 0.25];
  const boxes = [...(negative ? steps.map((s) => ["--neg", s]) : []), ["--hole", 1], ...steps.reverse().map((s) => ["--pos", s])];
  element("span", {}, host, negative ? weight(-most) : "0");
  const bar = shape("svg", { width: boxes.length * 18, height: 12, "aria-hidden": "true" }, host);
  boxes.forEach(([colour, opacity], k) => {
    shape("rect", { x: k * 18, width: 17, height: 12, rx: 2, fill: `var(${colour})`, "fill-opacity": opacity }, bar);
  });
  element("span", {}, host, `${weight(most)} and more; outlined: of its own`);
}

function drawGraph(run) {
  const step = stepOf(run.relationships);
  helpGraph(byId("graph"), {
    label: "Who helps whom",
    names: data.clients,
    weights: run.relationships.matrices[step],
    sizes: data.sizes,
    chosen: chosen.client,
    valueText: weight,
    choose: chooseClient,
  });
}

function drawTrajectories(run) {
  const { rounds, matrices } = run.relationships;
  const shown = data.clients.map((_, i) => i).filter((i) => !chosen.hiddenClients.has(i));
  byId("whose").textContent = data.clients[chosen.client];
  const line = (j, value) => ({
    label: data.clients[j],
    style: styleOf(j),
    heavy: j === chosen.client,
    points: rounds.map((round, k) => [round, value(matrices[k])]),
  });
  const common = {
    xName: "round",
    xText: String,
    xTitle: (round) => (round ? afterRound(round) : "before the first round"),
    yText: (v) => weight(v),
    valueText: (v) => weight(v, 3),
    zero: 0,
    together: true,
    empty: "choose a silo above",
  };
  const taken = shown.map((j) => line(j, (matrix) => matrix[chosen.client][j]));
  lineChart(byId("trajectories"), { label: `What ${data.clients[chosen.client]} takes from each`, series: taken, ...common });
  const kept = shown.map((i) => line(i, (matrix) => matrix[i][i]));
  lineChart(byId("selves"), { label: "Self-relationships", series: kept, ...common });
}
