// Class by class: what the chosen silo's model makes of its own test cases.
"use strict";

const MATRIX_CLASSES = 24; // a larger matrix cannot be read

// The classes that occur among a silo's test cases or among what its model says of them, with their counts.
function confusionOf(rows) {
  const present = data.classes.map((_, k) => k).filter((k) => rows.some(([truth, given]) => truth === k || given === k));
  const count = (truth, given) => rows.reduce((sum, row) => sum + (row[0] === truth && row[1] === given ? row[2] : 0), 0);
  return { present, table: present.map((truth) => present.map((given) => count(truth, given))) };
}

function drawClasses() {
  const view = focus();
  const rows = view.by_class && view.by_class[chosen.client];
  byId("classes").hidden = !data.methods.some((method) => method.by_class);
  const seeds = view.runs.length && data.counted ? `, the cases of ${view.runs.length} seeds together` : "";
  byId("classes-note").textContent = rows
    ? `What the model of ${data.clients[chosen.client]} makes of its own test cases with ${view.label}, at the best round${seeds}.`
    : `There are no figures by ${data.noun} of ${view.label} for ${data.clients[chosen.client]}.`;
  byId("classes-pair").hidden = !rows;
  byId("confusion-figure").hidden = true;
  if (!rows) return;
  if (data.counted) drawConfusion(confusionOf(rows));
  else drawFindings(rows);
}

function drawConfusion({ present, table }) {
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const names = present.map((k) => data.classes[k]);
  const held = table.map(sum);
  const named = present.map((_, j) => sum(table.map((row) => row[j])));
  const lines = names.map((name, k) => {
    const wrong = table[k].map((count, j) => (j === k ? 0 : count));
    const most = Math.max(0, ...wrong);
    const taken = most ? `${names[wrong.indexOf(most)]} (${most.toLocaleString("en")})` : "–";
    return [name, held[k].toLocaleString("en"), shareText(table[k][k], held[k]), shareText(table[k][k], named[k]), taken];
  });
  classesTable(
    [
      [`${data.noun[0].toUpperCase()}${data.noun.slice(1)}`, ""],
      ["Test cases", ""],
      ["Recognised", "recall: of the test cases of this class, the share that the model names so"],
      ["Right when named", "precision: of the test cases that the model names so, the share that is of this class"],
      ["Most often taken for", "the other class that it is named most often, and how many times"],
    ],
    lines,
  );
  byId("confusion-figure").hidden = names.length > MATRIX_CLASSES;
  if (names.length > MATRIX_CLASSES) return;
  heatmap(byId("confusion"), {
    label: "What the test cases of each class are taken for",
    rows: names,
    columns: names,
    rowsName: "what it is",
    columnsName: "what the model says",
    own: true,
    digits: 4,
    value: (i, j) => table[i][j],
    fill: (i, j) => [i === j ? "--pos" : "--neg", held[i] ? table[i][j] / held[i] : 0],
    text: (i, j) => (table[i][j] ? String(table[i][j]) : ""),
    title: (i, j) => (i === j ? `${names[i]}, recognised` : `${names[i]}, taken for ${names[j]}`),
    lines: (i, j) => [
      { label: "test cases", value: table[i][j].toLocaleString("en") },
      { label: `of the ${held[i].toLocaleString("en")} of ${names[i]}`, value: shareText(table[i][j], held[i]) },
    ],
  });
}

const shareText = (some, of) => (of ? percent(some / of, 0) : "–");

function drawFindings(rows) {
  classesTable(
    [
      ["Finding", ""],
      ["Test cases that have it", ""],
      ["AUROC", "the chance that a test case with the finding gets a higher score than one without: 0.5 is guessing, 1 is perfect"],
      ["Average precision", "the mean of precision over all thresholds, each by the recall that it adds: 1 is perfect"],
    ],
    rows.map(([cases, auroc, precision], k) => [data.classes[k], cases.toLocaleString("en"), scoreOrDash(auroc), scoreOrDash(precision)]),
  );
}

const scoreOrDash = (value) => (value === null ? "–" : weight(value, 3));

function classesTable(columns, lines) {
  const table = byId("classes-table");
  table.replaceChildren();
  const head = element("tr", {}, element("thead", {}, table));
  for (const [name, hint] of columns) headingCell(head, name, hint);
  const body = element("tbody", {}, table);
  for (const [name, ...cells] of lines) {
    const row = element("tr", {}, body);
    element("th", { scope: "row" }, row, name);
    for (const cell of cells) element("td", {}, row, cell);
  }
}
