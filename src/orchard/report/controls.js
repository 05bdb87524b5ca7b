// The controls, and the live page: built once; new data are drawn into what is there, so nobody loses their place.
"use strict";

const POLL_EVERY = 1000;
const PLAY_EVERY = 150;

function draw() {
  drawHeader();
  drawTraining();
  drawClients();
  drawClasses();
  drawHelping();
  drawHoldings();
  drawTraffic();
  drawLeaks();
  drawSettings();
}

function chooseClient(i) {
  chosen.client = i;
  byId("client").value = i;
  draw();
}

function tickBox(host, style, text, on, change) {
  const label = element("label", {}, host);
  const box = element("input", { type: "checkbox" }, label);
  box.checked = on;
  box.onchange = () => change(box.checked);
  if (style) swatch(style, label);
  element("span", {}, label, text);
}

// Runs on several data sets are shown one set at a time.
let sets = [];

function buildSets() {
  byId("choose-data").hidden = sets.length < 2;
  sets.forEach((set, k) => element("option", { value: k }, byId("data-set"), `${shortened(set.title, 60)} (${runsText(set)})`));
  byId("data-set").onchange = (event) => {
    data = sets[Number(event.target.value)];
    Object.assign(chosen, { method: null, seed: null, client: 0, step: null, gains: false, hiddenMethods: new Set(), hiddenClients: new Set() });
    buildChoices();
    draw();
  };
}

function runsText(set) {
  const runs = new Set(set.methods.flatMap((method) => method.folders)).size;
  return `${runs} run${runs > 1 ? "s" : ""}`;
}

// What depends on the data: made anew when another set is chosen.
function buildChoices() {
  for (const id of ["method", "client"]) byId(id).replaceChildren();
  for (const id of ["methods", "peers", "modes"]) byId(id).querySelectorAll("label").forEach((label) => label.remove());
  buildMethods();
  buildClients();
  buildModes();
}

function buildMethods() {
  byId("choose-method").hidden = byId("methods").hidden = data.methods.length < 2;
  const select = byId("method");
  for (const method of data.methods) {
    element("option", { value: method.label }, select, shortened(method.label, 60));
    tickBox(byId("methods"), styleOfMethod(method), method.label, true, (on) => {
      chosen.hiddenMethods[on ? "delete" : "add"](method.label);
      draw();
    });
  }
  chosen.method = select.value = focus().label;
  select.onchange = () => {
    chosen.method = select.value;
    buildSeeds();
    draw();
  };
  buildSeeds();
}

// Of a method with several seeds, their mean is shown unless the reader opens one of them.
function buildSeeds() {
  const { runs } = data.methods.find((method) => method.label === chosen.method);
  const select = byId("seed");
  chosen.seed = null;
  byId("choose-seed").hidden = !runs.length;
  select.replaceChildren();
  element("option", { value: "" }, select, `mean of ${runs.length}`);
  for (const { seeds } of runs) element("option", { value: seeds[0] }, select, String(seeds[0]));
  select.onchange = () => {
    chosen.seed = select.value === "" ? null : Number(select.value);
    draw();
  };
}

function buildClients() {
  data.clients.forEach((name, i) => {
    element("option", { value: i }, byId("client"), shortened(name, 60));
    tickBox(byId("peers"), styleOf(i), name, true, (on) => {
      chosen.hiddenClients[on ? "delete" : "add"](i);
      draw();
    });
  });
  byId("client").onchange = (event) => chooseClient(Number(event.target.value));
}

function buildModes() {
  for (const [text, gains] of [[data.score.title, false], ["gain over training alone", true]]) {
    const label = element("label", {}, byId("modes"));
    const button = element("input", { type: "radio", name: "mode" }, label);
    button.checked = gains === chosen.gains;
    button.onchange = () => {
      chosen.gains = gains;
      draw();
    };
    element("span", {}, label, text);
  }
}

function buildSlider() {
  const slider = byId("round");
  const move = (step) => {
    const last = related().relationships.rounds.length - 1;
    chosen.step = step >= last ? null : step;
    drawHelping();
  };
  slider.oninput = () => move(Number(slider.value));
  let playing = null;
  const stop = () => {
    clearInterval(playing);
    playing = null;
    byId("play").textContent = "Play";
  };
  byId("play").onclick = () => {
    if (playing) return stop();
    byId("play").textContent = "Pause";
    if (chosen.step === null) move(0);
    playing = setInterval(() => (chosen.step === null ? stop() : move(chosen.step + 1)), PLAY_EVERY);
  };
}

function buildCopy() {
  byId("copy").onclick = async () => {
    const range = document.createRange();
    range.selectNodeContents(byId("command"));
    getSelection().removeAllRanges();
    getSelection().addRange(range); // where the clipboard is out of reach, the reader can still copy by hand
    try {
      await navigator.clipboard.writeText(byId("command").textContent);
      byId("copy").textContent = "Copied";
    } catch {
      byId("copy").textContent = "Selected";
    }
    setTimeout(() => (byId("copy").textContent = "Copy"), 2000);
  };
}

function build() {
  sets = [data, ...data.others];
  buildSets();
  buildChoices();
  buildSlider();
  buildCopy();
  watchScrolling();
  byId("report").hidden = false;
  let width = byId("report").clientWidth;
  new ResizeObserver(() => {
    if (byId("report").clientWidth !== width) draw();
    width = byId("report").clientWidth;
  }).observe(byId("report"));
}

// --- Live ---

let built = false;

function accept(fresh) {
  data = fresh;
  if (!data.methods) {
    byId("title").textContent = data.title;
    byId("story").textContent = data.waiting;
    return;
  }
  if (!built) build();
  built = true;
  draw();
}

async function poll() {
  try {
    const answer = await fetch(`data?have=${encodeURIComponent(data.version)}`, { cache: "no-store" });
    if (answer.status === 200) accept(await answer.json());
    sayState();
  } catch {
    byId("status").textContent = "no longer live: this is how it was last seen";
  }
  setTimeout(poll, POLL_EVERY);
}

function sayState() {
  const states = { running: "live", finished: "finished", failed: "failed", interrupted: "interrupted" };
  byId("status").textContent = data.methods ? states[data.methods[0].state] : "waiting";
}

accept(data);
if (data.version) {
  sayState();
  poll();
}
