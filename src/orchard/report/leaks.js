// What audits found: their table, and pictures of what was made of single steps.
"use strict";

function drawLeaks() {
  byId("leaks").hidden = !data.leaks;
  if (!data.leaks) return;
  const [table, pictures, notes] = ["leaks-table", "recovered", "leaks-notes"].map(byId);
  for (const host of [table, pictures, notes]) host.replaceChildren();
  const head = element("tr", {}, element("thead", {}, table));
  for (const name of data.leaks.head) element("th", { scope: "col" }, head, name);
  const body = element("tbody", {}, table);
  for (const [name, ...cells] of data.leaks.rows) {
    const row = element("tr", {}, body);
    element("th", { scope: "row" }, row, name);
    for (const cell of cells) element("td", {}, row, cell);
  }
  for (const [label, source] of data.leaks.pictures) {
    const figure = element("figure", {}, pictures);
    const caption = element("figcaption", {}, figure);
    element("b", {}, caption, label);
    element("span", {}, caption, ": samples of one silo above; below, what is made of its first step on 1, 2 and 4 of them");
    element("img", { src: source, alt: `Samples, and what was recovered of them: ${label}` }, figure);
  }
  for (const note of data.leaks.notes) element("p", { class: "note" }, notes, note);
}
