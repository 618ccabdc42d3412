
"use strict";

// State, which the link has: every value is text, and values equal to these are left out.
const DEFAULTS = {
  src: "form", t_f: "30", t_b: "30", t_w: "20", m_b: "1", m_w: "0.5", xf: "1", xb: "1", xw: "1",
  ranks: "8", m: "24", link: "0.5", limit: "10", time: "4", objective: "", model: "llama-3-8b",
  cluster: "H100", tp: "1", micro: "1", file: "", places: "linear,interleaved:2,v,wave:2",
  show: "", one: "", view: "", op: "", limits: "", sweep: "",
};
// Key, label, kinds of profiles that have it ("": all), least, most and step of the slider
const FIELDS = [
  ["t_f", "T_F, forward (ms)", "form", 1, 100, 1],
  ["t_b", "T_B, input gradient (ms)", "form", 1, 100, 1],
  ["t_w", "T_W, weight gradient (ms)", "form", 0, 100, 1],
  ["m_b", "M_B, held from F to B", "form", 0.1, 4, 0.1],
  ["m_w", "M_W, held from B to W", "form", 0, 4, 0.1],
  ["xf", "T_F, times", "file model", 0.2, 4, 0.05],
  ["xb", "T_B, times", "file model", 0.2, 4, 0.05],
  ["xw", "T_W, times", "file model", 0.2, 4, 0.05],
  ["limit", "Memory limit of a rank", "", 0, 32, 0.5],
  ["m", "Microbatches", "", 1, 128, 1],
  ["ranks", "Ranks", "form model", 2, 64, 1],
  ["link", "Link delay (ms)", "", 0, 20, 0.1],
];
const KEYS = FIELDS.map(([key]) => key);
const WORDS = ["model", "cluster", "tp", "micro", "time", "objective"];
// The field that shows a fault about a key
const FAULTS = {
  num_stages: "ranks", pp: "ranks", microbatches: "m", memory_limit: "limit", t_comm: "link",
  time_limit: "time", placements: "places", memory_limits: "limits", micro_batch: "micro",
  traces: "file",
};
const $ = id => document.getElementById(id);
const FORM = {limit: DEFAULTS.limit, link: DEFAULTS.link};
let state = {...DEFAULTS};
let choices = null, loaded = null, told = [], running = null, latest = "", turn = 0, timer = 0;
let rows = new Map(), series = new Map(), details = new Map(), panels = [];
let view = [0, 1], chosen = null, focus = null, spent = 4;

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const plain = (x, digits = 5) => String(Number(x.toPrecision(digits)));
const ms = x => x >= 1e5 ? `${plain(x / 1e3)} s` : `${plain(x)} ms`;
const percent = x => `${Math.abs(x) < 5e-7 ? 0 : plain(x * 100, 3)} %`;
const size = x => x >= 1e6 ? `${plain(x / 1e9, 4)} GB` : plain(x);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const number = text => text === "" || isNaN(text) ? text : Number(text);
const value = key => number(state[key]);
const stop = name => call(`api/solves/${name}/stop`, {});
const json = async (path, body) => (await call(path, body)).json();

const on = (id, then, kind = "click") => $(id).addEventListener(kind, then);
const xOf = (time, k) => LEFT + (time - view[0]) * k;

function make(tag, properties = {}, ...children) {
  const found = Object.assign(document.createElement(tag), properties);
  found.append(...children);
  return found;
}

async function call(path, body) {
  const how = body === undefined ? {} :
    {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
  const response = await fetch(path, how).catch(() => {
    throw Error("The server does not answer.");
  });
  if (response.ok) return response;
  const {faults} = await response.json();
  throw Object.assign(new Error(faults[0].text), {faults, status: response.status});
}

function readLink() {
  state = {...DEFAULTS, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1)))};
}

function writeLink() {
  const kept = Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key]);
  history.replaceState(null, "", "#" + new URLSearchParams(kept));
}

// The form
function buildForm() {
  $("sliders").append(...FIELDS.map(fieldOf));
  for (const key of ["model", "cluster"]) {
    $(key).append(...choices[key + "s"].map(name => make("option", {value: name}, name)));
  }
  for (const name of choices.placements) {
    const box = make("input", {type: "checkbox", name: "place", value: name});
    $("places").append(make("label", {}, box, " " + name));
  }
  for (const [name, words] of Object.entries(choices.downloads)) {
    $("files").append(make("button", {onclick: () => download(name)}, words));
  }
  for (const id of [...KEYS, ...WORDS, "file", "places", "limits"]) {
    for (const each of [$(id), $("r-" + id)]) each?.setAttribute("aria-describedby", "f-" + id);
    $(id).after(make("p", {className: "fault", id: "f-" + id}));
  }
}

function buildLegend() {
  for (const [kind, {name, shades}] of Object.entries(choices.kinds).slice(0, 4)) {
    const box = make("i");
    box.style.background = shades[0];
    $("legend").append(make("span", {}, box, `${kind}: ${name}`));
  }
}

function fieldOf([key, label, of, least, most, step]) {
  const range = make("input", {type: "range", id: "r-" + key, min: least, max: most, step,
    ariaLabel: label, unit: "", oninput: () => changed(key, range.value + range.unit)});
  const box = make("input", {id: key, placeholder: "profile’s",
    onchange: () => changed(key, box.value.trim())});
  const name = make("label", {htmlFor: key}, label);
  const found = make("div", {className: "field"}, name, range, box);
  if (of) found.dataset.for = of;
  return found;
}

function showForm() {
  for (const radio of document.getElementsByName("src")) radio.checked = radio.value === state.src;
  for (const part of document.querySelectorAll("[data-for]")) {
    part.hidden = !part.dataset.for.split(" ").includes(state.src);
  }
  setMemoryRange();
  KEYS.forEach(showField);
  for (const key of [...WORDS, "limits"]) $(key).value = state[key];
  const places = state.places.split(",");
  for (const box of document.getElementsByName("place")) box.checked = places.includes(box.value);
  $("file-name").textContent = loaded ? [loaded.name, ...told].join("; ") : "";
}

function showField(key) {
  $(key).value = state[key];
  $("r-" + key).value = parseFloat(state[key]) || 0;
  $("r-" + key).ariaValueText = state[key] || "as in the profile";
}

function setMemoryRange() {
  const {most, unit} = memoryOf(loaded || formProfile());
  const step = 10 ** Math.floor(Math.log10(most / 10)) / 2;
  Object.assign($("r-limit"), {step, max: Math.ceil(2 * most / step) * step, unit});
}

function changed(key, text) {
  if (state[key] === text) return;
  turn++; // what is under way is of another problem
  state[key] = text;
  if (key === "src") Object.assign(state, {limit: "", link: ""}, text === "form" && FORM);
  const another = key === "src" || (state.src === "model" && [...WORDS, "ranks"].includes(key));
  if (another) loaded = null;
  showForm();
  clearTimeout(timer);
  timer = setTimeout(restart, 250);
}

function showFaults(faults) {
  for (const place of document.querySelectorAll(".fault")) place.textContent = "";
  for (const field of document.querySelectorAll("[aria-invalid]")) field.ariaInvalid = null;
  for (const fault of faults) showFault(fault);
}

function showFault({key, words, text}) {
  const known = key.split(/[^a-z_]+/).map(part => FAULTS[part] || part);
  const id = known.findLast(part => part && $("f-" + part));
  if (!id || $(id).closest("[hidden]")) return $("faults").append(text || words, " ");
  $("f-" + id).append(words, " ");
  $(id).ariaInvalid = "true";
  if ($(id).closest("details")) $(id).closest("details").open = true;
}

// The profile
async function currentProfile(mine) {
  if (state.src === "form") return formProfile();
  const found = loaded ||
    (state.src === "model" ? await modelProfile() : JSON.parse(state.file || null));
  if (mine !== turn) return null;
  loaded = found;
  showForm();
  return loaded && scaled(structuredClone(loaded));
}

function formProfile() {
  const [t_f, t_b, t_w, m_b, m_w] = ["t_f", "t_b", "t_w", "m_b", "m_w"].map(value);
  return {format: "pipeloom.profile", version: 1, name: "page", ranks: value("ranks"),
    num_stages: value("ranks"), stages: [{t_f, t_b, t_w, m_b, m_w}], t_comm: value("link")};
}

async function modelProfile() {
  const asked = {model: state.model, cluster: state.cluster, pp: value("ranks"), tp: value("tp"),
    micro_batch: value("micro"), microbatches: value("m")};
  return (await json("api/profile", asked)).profile;
}

const partsOf = ({stages, layers}) => [stages || layers || []].flat()
  .filter(part => part instanceof Object);

// Memory that 1F1B needs, in the unit of limits
function memoryOf(profile) {
  const held = partsOf(profile).map(({m_b, repeat}) => Math.max(...[m_b].flat()) * (repeat || 1));
  const most = profile.stages ? Math.max(1e-6, ...held) * (Number(profile.ranks) || 1)
    : held.reduce((sum, each) => sum + each, 1e-6);
  return most < 1e6 ? {most, unit: ""} : {most: most / 1e9, unit: "GB"};
}

function scaled(profile) {
  const [xf, xb, xw] = ["xf", "xb", "xw"].map(value);
  for (const part of partsOf(profile)) {
    const {t_f, t_b, t_w} = part, at = (x, j) => Array.isArray(x) ? x[j] : x;
    const sum = (j, f, b, w) => f * at(t_f, j) + b * at(t_b, j) + w * at(t_w, j);
    const by = {t_f: () => xf, t_r: () => xf, t_b: () => xb, t_w: () => xw,
      t_bw: j => sum(j, 0, xb, xw) / sum(j, 0, 1, 1),
      t_fb: j => sum(j, xf, xb, xw) / sum(j, 1, 1, 1)};
    for (const key in by) {
      const scale = (x, j) => x && x * by[key](j);
      if (key in part) part[key] = part[key]?.map?.(scale) || scale(part[key], 0);
    }
  }
  if (state.link !== "") profile.t_comm = value("link");
  return profile;
}

async function takeFiles(list) {
  const texts = await Promise.all(Array.from(list, file => file.text()));
  let found = JSON.parse(texts[0]), notes = [];
  const made = found?.format === "pipeloom.profile" || found?.stages || found?.layers;
  if (!made) ({profile: found, notes} = await json("api/profile", {traces: texts}));
  told = notes;
  const text = JSON.stringify(found), lists = Array.isArray(partsOf(found)[0]?.t_f);
  Object.assign(state, {src: "file", file: text.length < 40000 ? text : "", limit: "", link: ""});
  if (lists) state.m = "";
  loaded = found;
  restart();
}

// Rows of another problem are gray until the first one of this problem.
function outdate() {
  clearTimeout(timer);
  latest = "";
  $("frontier").replaceChildren();
  $("results").className = "old";
}

function dropOld() {
  if (!$("results").className) return;
  $("results").className = "";
  chosen = null;
  hover(null);
  rows.clear();
  showRows();
}

function restart() {
  outdate();
  state.view = state.op = state.sweep = "";
  showForm();
  writeLink();
  return solve();
}

// Solving
async function solve(wanted = {}) {
  const mine = ++turn, {start, limits} = wanted;
  showFaults([]);
  series.clear();
  $("notes").textContent = "";
  await halt();
  try {
    const profile = await currentProfile(mine);
    if (mine !== turn) return;
    if (!profile) throw Error("Choose a file.");
    const asked = problem(profile);
    if (start) Object.assign(asked, {start, time_limit: Math.min(120, 4 * spent)});
    if (limits) sweeping(asked, profile);
    const {solve: name} = await json("api/solves", asked);
    spent = asked.time_limit;
    if (mine === turn) watch(name, mine);
    else await stop(name);
  } catch (error) {
    if (mine !== turn) return;
    if (error.status !== 429) return failed(error);
    tell("Waiting until another solve ends…");
    setTimeout(() => mine === turn && solve(wanted), 500);
  }
}

function problem(profile) {
  const placements = state.places.split(",").filter(Boolean);
  const asked = {profile, placements, time_limit: value("time")};
  if (state.m !== "") asked.microbatches = value("m");
  if (state.limit !== "") asked.memory_limit = value("limit");
  if (state.objective) asked.objective = state.objective;
  return asked;
}

function sweeping(asked, profile) {
  const {most, unit} = memoryOf(profile);
  const usual = [.4, .5, .65, .8, 1, 1.3, 1.7, 2].map(x => plain(x * most, 3) + unit);
  state.sweep = "1";
  $("limits").value = state.limits = state.limits || usual.join(",");
  writeLink();
  asked.memory_limits = state.limits.split(/[,\s]+/).filter(Boolean).map(number);
  delete asked.memory_limit;
  if (asked.placements.length > 1) delete asked.placements;
}

function failed(error) {
  const wrong = error instanceof SyntaxError && [{key: "file", words: "expected JSON"}];
  const faults = error.faults || wrong || [];
  ended();
  dropOld();
  tell(faults.length ? "The problem has faults." : error.message);
  showFaults(faults);
}

async function halt() {
  if (!running) return;
  const {name} = running;
  ended();
  await stop(name).catch(() => {});
}

function ended() {
  running?.source.close();
  running = null;
  $("stop").disabled = true;
  $("longer").disabled = !latest;
}

// The status is read aloud; the figures beside it change too often for that.
function tell(words) {
  $("status").textContent = words;
  $("now").textContent = "";
}

function watch(name, mine) {
  const source = new EventSource(`api/solves/${name}/events`);
  running = {name, source};
  $("stop").disabled = false;
  $("longer").disabled = true;
  tell("Solving (kernels are compiled once)…");
  const on = (kind, then) => source.addEventListener(kind, event => {
    if (mine === turn) then(JSON.parse(event.data));
  });
  on("row", row => addRow({...row, solve: name}));
  on("searching", ({name, at, of}) => tell(`${name} (${at} of ${of}): searching`));
  on("progress", addProgress);
  on("note", ({text}) => $("notes").append(make("div", {}, text)));
  on("frontier", found => openFrontier({...found, solve: name}));
  on("end", end => finish(end, name));
  source.onerror = () => {
    if (mine !== turn) return;
    if (source.readyState === 2) solve(); // another server: it does not know this solve
    else tell("The server does not answer: trying again…");
  };
}

function addProgress({name, seconds, cost, bound, gap}) {
  if (!series.has(name)) series.set(name, []);
  if (cost === null) return;
  series.get(name).push({seconds, cost, bound});
  $("now").textContent = `${name}: best ${ms(cost)}, bound ${ms(bound)}, gap ${percent(gap)}`;
  later();
}

function finish({state: how, seconds, faults}, name) {
  dropOld();
  if (known().some(row => row.solve === name && !isPoint(row))) latest = name;
  ended();
  const best = built()[0];
  const words = best ? `: best ${best.name}, ${ms(best.cost)}` : "";
  tell(`${how} after ${seconds.toFixed(1)} s${words}`);
  if (faults.length) return showFaults(faults);
  if (state.sweep && how === "Done" && !known().some(isPoint)) solve({limits: true});
}

// The table
function addRow(row) {
  dropOld();
  rows.delete(row.name);
  rows.set(row.name, row);
  showRows();
}

const known = () => [...rows.values()];
const keyOf = row => `${row.solve}/rows/${row.row}`;
const order = row =>
  row.cost + (row.uncosted || !row.fits ? 1e15 : 0) + (isPoint(row) ? 1e18 : 0);
const isPoint = ({name}) => name.startsWith("limit ");
const built = () => known().filter(row => row.built)
  .sort((a, b) => order(a) - order(b));

function shownNames() {
  if (choices.rows) return [...rows.keys()];
  const asked = state.show.split("~").filter(name => rows.get(name)?.built);
  if (asked.length) return asked;
  return [...new Set([built()[0]?.name, "1f1b"])].filter(name => rows.get(name)?.built);
}

function showRows() {
  const shown = shownNames(), body = $("rows").tBodies[0];
  if (choices.rows) return showPanels(shown);
  const focus = document.activeElement.dataset.row;
  body.replaceChildren(...built().map((row, i) => rowOf(row, shown, i)));
  if (focus) body.querySelector(`[data-row="${CSS.escape(focus)}"]`)?.focus();
  const refused = known().filter(row => !row.built);
  $("refused").hidden = !refused.length;
  $("refused").firstElementChild.textContent = `${refused.length} that cannot be built`;
  $("refused").lastElementChild.replaceChildren(
    ...refused.map(row => make("li", {}, `${row.name}: ${row.reason}`)));
  showPanels(shown);
}

function rowOf(row, shown, i) {
  const box = make("input", {type: "checkbox", checked: shown.includes(row.name),
    ariaLabel: `show ${row.name}`, onchange: () => toggle(row.name)});
  box.dataset.row = row.name;
  const gap = row.gap === null ? "–" : row.status === "optimal" ? "optimal" : percent(row.gap);
  const notes = row.notes.map(text => make("div", {className: "hint"}, text));
  const cells = [box, make("div", {}, row.name, ...notes), percent(row.bubble_rate), ms(row.cost),
    gap, size(row.peak_memory)];
  return make("tr", {className: i ? "" : "best"}, ...cells.map(cell => make("td", {}, cell)));
}

function toggle(name) {
  const shown = shownNames();
  state.one = name;
  keep("show", (shown.includes(name) ? shown.filter(x => x !== name) : [...shown, name]).join("~"));
}

function detailOf(row) {
  const key = keyOf(row);
  if (details.has(key)) return details.get(key);
  if (details.size > 60) details.clear();
  details.set(key, json(`api/solves/${key}`).then(prepared));
  return details.get(key);
}

function prepared(detail) {
  const {order, pairs} = detail.schedule;
  let first = 0;
  detail.end = 1e-9;
  detail.ranks = order.map((ops, rank) => {
    const stages = [...new Set(ops.map(op => op.stage))].sort((a, b) => a - b);
    for (const op of ops) {
      op.colour = colourOf(op.op, stages.indexOf(op.stage) / (stages.length - 1 || 1));
      detail.end = Math.max(detail.end, op.end);
    }
    for (const at of pairs?.[rank] || []) [ops[at].half, ops[at + 1].half] = [0, 1];
    first += ops.length;
    return {ops, first: first - ops.length, computed: ops.filter(op => !isCopy(op))};
  });
  detail.count = first;
  return detail;
}

function colourOf(kind, shade) {
  const {shades, inks} = choices.kinds[kind];
  const at = Math.round(shade * (shades.length - 1)), rgb = parseInt(shades[at].slice(1), 16);
  const pixel = (255 << 24 | (rgb & 255) << 16 | rgb & 0xff00 | rgb >> 16) >>> 0;
  return {fill: shades[at], ink: inks[at], pixel};
}

// Timelines
async function showPanels(shown) {
  const wanted = shown.map(name => rows.get(name)).filter(row => row);
  const mine = showPanels.turn = (showPanels.turn || 0) + 1;
  const found = await Promise.all(wanted.map(row => detailOf(row).catch(() => null)));
  if (mine !== showPanels.turn) return;
  const old = panels;
  panels = wanted.map((row, i) => found[i] &&
    panelOf(old.find(panel => panel.row.name === row.name), row, found[i])).filter(Boolean);
  const roots = panels.map(panel => panel.root);
  if (roots.some((root, i) => root !== $("panels").children[i]) || old.length > roots.length) {
    $("panels").replaceChildren(...roots);
  }
  const [from, to] = state.view.split("-").map(Number);
  if (panels.length) view = to > from ? [from, to] : [0, wholeEnd()];
  restoreOp();
  showVersus();
  showOne();
  later();
}

function panelOf(panel, row, detail) {
  if (!panel) {
    const canvas = make("canvas", {tabIndex: 0, role: "application"});
    panel = {canvas, head: make("h3")};
    panel.root = make("div", {className: "panel"}, panel.head, canvas);
    listen(panel);
  }
  if (panel.detail !== detail) chosen = focus = null;
  Object.assign(panel, {row, detail});
  const bound = row.lower_bound ? `, bound ${ms(row.lower_bound)}` : "";
  const words = `${objectiveOf(panel)} ${ms(row.cost)}, bubble ${percent(row.bubble_rate)}${bound}`;
  panel.head.replaceChildren(row.name, make("span", {}, words));
  panel.canvas.ariaLabel = `Timeline and memory of ${row.name}: arrows move between ops`;
  return panel;
}

const wholeEnd = () => Math.max(1e-9, ...panels.map(panel => panel.detail.end));

const objectiveOf = panel => panel.detail.schedule.report.objective;

function showVersus() {
  const [one, ...others] = panels.map(panel => panel.row);
  $("cost").textContent = one ? objectiveOf(panels[0]) : "time";
  $("versus").textContent = others.map(other => {
    const more = other.cost / one.cost - 1;
    const how = `${percent(Math.abs(more))} ${more < 0 ? "shorter" : "longer"}`;
    return `${other.name}: ${objectiveOf(panels[0])} ${how} than ${one.name}.`;
  }).join(" ");
}

const LEFT = 30;

function later() {
  if (later.asked) return;
  later.asked = requestAnimationFrame(() => {
    later.asked = 0;
    for (const panel of panels) drawPanel(panel);
    drawProgress();
  });
}

function prepareCanvas(canvas, height) {
  const scale = devicePixelRatio, width = canvas.clientWidth;
  Object.assign(canvas, {width: width * scale, height: height * scale});
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  ctx.font = "11px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  return {ctx, width, height};
}

const rowHeight = ({detail}) => clamp((panels.length > 4 ? 120 : 300) / detail.ranks.length, 5, 24);

function drawPanel(panel) {
  const {ranks} = panel.detail, h = rowHeight(panel);
  const end = ranks.length * h + 18;
  const {ctx, width} = prepareCanvas(panel.canvas, end + 74);
  const k = (width - LEFT) / (view[1] - view[0]);
  const muted = css("--muted"), every = Math.ceil(12 / h);
  ctx.fillStyle = css("--idle");
  for (const rank in ranks) ctx.fillRect(LEFT, rank * h, width - LEFT, h - 1);
  drawOps(ctx, panel.detail, h, width);
  ranks.forEach((rank, i) => {
    drawLabels(ctx, rank, i * h, h - 1, k, width);
    ctx.fillStyle = muted;
    if (i % every === 0) ctx.fillText(i, 4, i * h + h / 2);
  });
  drawAxis(ctx, panel, k, width, ranks.length * h);
  drawChain(ctx, panel, h, k, width);
  ctx.translate(0, end);
  drawMemory(ctx, panel, k, width);
}

const isCopy = ({op}) => op === "O" || op === "L";

// Ops as an image, with two lines for each rank, as pairs need: a pixel shows the op at its middle.
function drawOps(ctx, {ranks}, h, width) {
  const wide = Math.max(1, Math.round((width - LEFT) * devicePixelRatio));
  const step = (view[1] - view[0]) / wide;
  const image = new ImageData(wide, 2 * ranks.length);
  const pixels = new Uint32Array(image.data.buffer);
  ranks.forEach(({computed: ops}, rank) => {
    for (let x = 0, i = 0, at = 2 * rank * wide; x < wide; x++, at++) {
      const time = view[0] + (x + .5) * step;
      while (ops[i]?.end <= time) i++;
      for (let j = i; ops[j]?.start <= time; j++) {
        const {start, end, half, colour} = ops[j], edge = end - start > 5 * step ? step : 0;
        if (end <= time || start + edge > time) continue;
        if (half !== 1) pixels[at] = colour.pixel;
        if (half !== 0) pixels[at + wide] = colour.pixel;
      }
    }
  });
  const canvas = drawOps.canvas ||= make("canvas");
  Object.assign(canvas, {width: wide, height: 2 * ranks.length});
  canvas.getContext("2d").putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = false;
  for (const rank in ranks) {
    ctx.drawImage(canvas, 0, 2 * rank, wide, 2, LEFT, rank * h, width - LEFT, h - 1);
  }
}

// The numbers on ops that are wide enough, and copies to and from the host
function drawLabels(ctx, {ops}, y, h, k, width) {
  for (const op of ops) {
    if (op.end <= view[0] || op.start >= view[1]) continue;
    if ((op.end - op.start) * k < 17 && !isCopy(op)) continue;
    const x = Math.max(LEFT, xOf(op.start, k)), wide = Math.min(width, xOf(op.end, k)) - x;
    const tall = "half" in op ? h / 2 : h, middle = y + tall * (op.half || 0) + tall / 2;
    ctx.fillStyle = op.colour[isCopy(op) ? "fill" : "ink"];
    if (isCopy(op)) ctx.fillRect(x, y + .75 * h, Math.max(1, wide), h / 4);
    else if (wide > 17 && tall > 9) ctx.fillText(op.microbatch, x + 3, middle + .5, wide - 4);
  }
}

function ticks(from, to, about) {
  const raw = (to - from) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(x => x * power).find(x => x >= raw * .999);
  const found = [];
  for (let x = Math.ceil(from / step - 1e-9) * step; x <= to; x += step) found.push(x);
  return found;
}

// The times, and a line where the schedule ends
function drawAxis(ctx, panel, k, width, y) {
  for (const time of ticks(view[0], view[1], Math.max(2, width / 110))) {
    if (xOf(time, k) < width - 46) ctx.fillText(ms(Math.abs(time)), xOf(time, k), y + 9);
  }
  ctx.fillStyle = css("--mark");
  const end = xOf(panel.detail.end, k);
  if (end >= LEFT) ctx.fillRect(end - 1.5, 0, 1.5, y);
}

// What an op waited for. Nodes are numbers: all ops, rank after rank, then the transfers.
function placeOf({ranks, count}, node) {
  if (node >= count) return null;
  const at = ranks.findLastIndex(({first}) => first <= node);
  return {at, op: ranks[at].ops[node - ranks[at].first]};
}

function chainOf({waits}, node) {
  const found = [], {origin} = waits;
  for (let at = node; at >= 0 && found.length < origin.length; at = origin[at]) found.push(at);
  return found;
}

function wordsOf(detail, at, i) {
  const {ops, first} = detail.ranks[at], op = ops[i], node = first + i;
  const name = one => `${one.op}${one.microbatch} of stage ${one.stage}`;
  const head = `${name(op)} (${choices.kinds[op.op].name}) on rank ${at}: ` +
    `${ms(op.start)} to ${ms(op.end)}.`;
  const {waits, count} = detail, origin = waits.origin[node], delay = waits.delay[node];
  const chain = chainOf(detail, node);
  const links = chain.reduce((sum, one) => sum + waits.delay[one], 0);
  const path = `Critical path: ${chain.length} ops, ${ms(links)} on links.`;
  if (origin < 0) return `${head} It waited for nothing. ${path}`;
  const from = placeOf(detail, origin), idle = op.start - (i ? ops[i - 1].end : 0);
  const what = from ? `${name(from.op)} on ${from.at === at ? "its rank" : `rank ${from.at}`}`
    : `the transfer of ${waits.transfers[origin - count]}`;
  const link = delay > 0 ? ` and ${ms(delay)} on the link` : "";
  const idled = idle > 1e-9 ? ` Its rank idled for ${ms(idle)}.` : "";
  return `${head}${idled} It waited for ${what}${link}. ${path}`;
}

function choose(panel, at, i) {
  chosen = {panel, at, i};
  state.op = [panel.row.name, at, i].join("~");
  writeLink();
  hover(null);
}

// Show the op that is pointed at, or else the chosen one, and its critical path.
function hover(found) {
  focus = found || chosen;
  $("op").textContent = focus && wordsOf(focus.panel.detail, focus.at, focus.i);
  later();
}

function restoreOp() {
  const [name, at, i] = state.op.split("~");
  const panel = panels.find(one => one.row.name === name);
  const there = panel && !chosen && panel.detail.ranks[at]?.ops[i];
  if (there) choose(panel, +at, +i);
}

function drawChain(ctx, panel, h, k, width) {
  if (focus?.panel !== panel) return;
  const {detail} = panel, x = time => xOf(time, k);
  ctx.save();
  ctx.beginPath();
  ctx.rect(LEFT, 0, width - LEFT, detail.ranks.length * h);
  ctx.clip();
  ctx.strokeStyle = css("--mark");
  ctx.lineWidth = 2;
  ctx.beginPath();
  for (const node of chainOf(detail, detail.ranks[focus.at].first + focus.i)) {
    const place = placeOf(detail, node);
    if (!place || place.op.start > view[1]) continue;
    ctx.lineTo(x(place.op.end), (place.at + .5) * h);
    ctx.lineTo(x(place.op.start), (place.at + .5) * h);
    if (place.op.end < view[0]) break;
  }
  ctx.stroke();
  const {start, end} = detail.ranks[focus.at].ops[focus.i];
  ctx.strokeStyle = css("--ink");
  ctx.strokeRect(x(start), focus.at * h, Math.max(2, (end - start) * k), h - 1);
  ctx.restore();
}

// Memory over time: of the rank in focus, or else of the fullest one
function drawMemory(ctx, panel, k, width) {
  const {memory, schedule: {report, memory_limit: limits}} = panel.detail;
  const peaks = report.peak_memory, height = 74;
  const rank = focus?.panel === panel ? focus.at : peaks.indexOf(Math.max(...peaks));
  const limit = limits?.[rank] ?? Infinity;
  const top = 1.05 * Math.max(1e-9, ...peaks, limit < 4 * peaks[rank] ? limit : 0);
  const y = held => height - 14 - held / top * (height - 20);
  ctx.strokeStyle = ctx.fillStyle = css("--accent");
  drawCurve(ctx, memory[rank], k, width, y, height - 14);
  ctx.fillStyle = css("--muted");
  const words = limit < Infinity ? ` of ${size(limit)}` : ", no limit";
  ctx.fillText(`memory of rank ${rank}: at most ${size(peaks[rank])}${words}`, LEFT, height - 6);
  ctx.fillStyle = css("--mark");
  if (limit <= top) ctx.fillRect(LEFT, y(limit), width - LEFT, 1);
}

function drawCurve(ctx, curve, k, width, y, base) {
  let now = base;
  ctx.beginPath();
  ctx.moveTo(LEFT, base);
  for (const [time, held] of curve) {
    const x = clamp(xOf(time, k), LEFT, width);
    ctx.lineTo(x, now);
    ctx.lineTo(x, now = y(held));
  }
  ctx.lineTo(width, now);
  ctx.stroke();
  ctx.lineTo(width, base);
  ctx.globalAlpha = .22;
  ctx.fill();
  ctx.globalAlpha = 1;
}

// Pointer and keys
function zoom(factor, center) {
  const whole = wholeEnd(), span = view[1] - view[0];
  const wide = clamp(span * factor, whole / 20000, whole);
  showFrom(center - (center - view[0]) * wide / span, wide);
}

const pan = by => showFrom(view[0] + by, view[1] - view[0]);

function showFrom(time, wide) {
  const from = clamp(time, 0, wholeEnd() - wide);
  setView(from, from + wide);
}

function setView(from, to) {
  view = [from, to];
  state.view = from <= 0 && to >= wholeEnd() ? "" : `${plain(from)}-${plain(to)}`;
  clearTimeout(setView.timer);
  setView.timer = setTimeout(writeLink, 200);
  later();
}

function timeAt(canvas, clientX) {
  const box = canvas.getBoundingClientRect();
  return view[0] + (clientX - box.left - LEFT) / (box.width - LEFT) * (view[1] - view[0]);
}

function opAt(panel, event) {
  const y = (event.clientY - panel.canvas.getBoundingClientRect().top) / rowHeight(panel);
  const at = Math.floor(y), rank = panel.detail.ranks[at];
  const time = timeAt(panel.canvas, event.clientX);
  const isThere = op => op.start <= time && time < op.end &&
    (isCopy(op) ? y - at > .75 : op.half !== (y - at < .5 ? 1 : 0));
  const i = rank ? rank.ops.findIndex(isThere) : -1;
  return i < 0 ? null : {panel, at, i};
}

function listen(panel) {
  const {canvas} = panel;
  let held = null, moved = false;
  const on = (kind, then) => canvas.addEventListener(kind, then, {passive: false});
  const share = pixels => pixels / canvas.clientWidth * (view[1] - view[0]);
  on("wheel", event => {
    const wide = event.ctrlKey || event.metaKey;
    if (!wide && !event.deltaX) return;
    event.preventDefault();
    if (wide) zoom(Math.exp(event.deltaY * .004), timeAt(canvas, event.clientX));
    else pan(share(event.deltaX));
  });
  on("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    [held, moved] = [event.clientX, false];
  });
  on("pointermove", event => {
    if (held === null) return hover(opAt(panel, event));
    moved = moved || Math.abs(event.clientX - held) > 2;
    if (!moved) return;
    pan(share(held - event.clientX));
    held = event.clientX;
  });
  on("pointerup", event => {
    held = null;
    const found = moved ? null : opAt(panel, event);
    if (found) choose(panel, found.at, found.i);
  });
  on("pointercancel", () => { held = null; });
  on("pointerleave", () => hover(null));
  on("keydown", event => onKey(panel, event));
}

function onKey(panel, event) {
  const {ranks} = panel.detail, {at, i} = chosen?.panel === panel ? chosen : {at: 0, i: -1};
  const op = ranks[at].ops[i], middle = op ? op.start : (view[0] + view[1]) / 2;
  const beside = by => () => {
    const to = clamp(at + by, 0, ranks.length - 1);
    move(panel, to, ranks[to].ops.findIndex(({end}) => end > (op ? op.start : view[0])));
  };
  const along = by => () => event.shiftKey ? pan(by * (view[1] - view[0]) / 8)
    : move(panel, at, i + by);
  const known = {
    ArrowLeft: along(-1), ArrowRight: along(1), ArrowUp: beside(-1), ArrowDown: beside(1),
    "+": () => zoom(.7, middle), "-": () => zoom(1 / .7, middle),
    "0": () => setView(0, wholeEnd()),
  };
  if (!known[event.key] || event.ctrlKey) return;
  event.preventDefault();
  known[event.key]();
}

function move(panel, at, to) {
  const {ops} = panel.detail.ranks[at], i = clamp(to, 0, ops.length - 1);
  choose(panel, at, i);
  if (ops[i].start < view[0] || ops[i].end > view[1]) {
    pan(ops[i].start - (view[0] + view[1]) / 2);
  }
}

// The progress of the search
function drawProgress() {
  const {ctx, width, height} = prepareCanvas($("progress"), 130);
  const all = [...series.values()].flat();
  ctx.fillStyle = css("--muted");
  if (!all.length) return;
  const low = Math.min(...all.map(({bound}) => bound)) * .99;
  const high = 1.01 * Math.min(Math.max(...all.map(({cost}) => cost)), 1.6 * low);
  const last = Math.max(.1, ...all.map(({seconds}) => seconds));
  const x = t => 60 + t / last * (width - 70);
  const y = v => 8 + (high - clamp(v, low, high)) / (high - low) * (height - 32);
  for (const v of ticks(low, high, 4)) ctx.fillText(ms(v), 2, y(v));
  for (const t of ticks(0, last, 6)) ctx.fillText(`${plain(t)} s`, x(t), height - 8);
  [...series].forEach(([name, known], number) => {
    ctx.strokeStyle = ctx.fillStyle = `hsl(${number * 67 + 210} 60% 52%)`;
    stepLine(ctx, known, x, y, "cost");
    ctx.setLineDash([4, 4]);
    stepLine(ctx, known, x, y, "bound");
    ctx.setLineDash([]);
    const [first] = series.size < 9 ? known : [];
    if (first) ctx.fillText(name, x(first.seconds) + 4, y(first.cost) + 9);
  });
}

function stepLine(ctx, points, x, y, key) {
  ctx.lineWidth = 2;
  ctx.beginPath();
  points.forEach((point, i) => {
    if (i) ctx.lineTo(x(point.seconds), y(points[i - 1][key]));
    ctx.lineTo(x(point.seconds), y(point[key]));
  });
  ctx.stroke();
}

function showOne() {
  const names = panels.map(panel => panel.row.name);
  $("one").replaceChildren(...names.map(name => make("option", {value: name}, name)));
  const panel = panels.find(one => one.row.name === state.one) || panels[0];
  const {explanation = {}, command, python} = panel?.detail || {};
  if (panel) $("one").value = panel.row.name;
  $("why").textContent = explanation.words;
  $("command").textContent = command;
  $("python").textContent = python;
}

async function download(name) {
  $("f-files").textContent = "";
  try {
    const blob = await (await call(`api/solves/${keyOf(rows.get($("one").value))}/${name}`)).blob();
    make("a", {href: URL.createObjectURL(blob), download: name}).click();
  } catch (error) {
    $("f-files").textContent = error.message;
  }
}

// The frontier
function openFrontier({picture, points, solve}) {
  dropOld();
  rows = new Map([...rows].filter(([, row]) => !isPoint(row)));
  const found = points.map(point => ({...point, name: `limit ${point.name}`, solve}));
  for (const row of found) rows.set(row.name, row);
  const shown = found.filter(row => row.built);
  showRows();
  if (!picture) return $("frontier").replaceChildren("No schedule fits within these limits.");
  const text = picture.replace(/<style>[^<]*<.style>/, "");
  const svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  $("frontier").replaceChildren(svg, "A circle opens its schedule.");
  const circles = [...svg.querySelectorAll("circle")].filter(each => each.firstChild);
  circles.forEach((circle, i) => asButton(circle, shown[i].name));
}

function asButton(circle, name) {
  Object.assign(circle, {role: "button", tabIndex: 0, ariaLabel: circle.textContent});
  circle.onclick = () => openPoint(name);
  circle.onkeydown = event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    openPoint(name);
  };
}

function openPoint(name) {
  const other = shownNames().find(shown => !shown.startsWith("limit "));
  state.one = name;
  keep("show", other ? `${name}~${other}` : name);
  $("h-time").scrollIntoView();
}

function listenToForm() {
  on("form", event => {
    event.preventDefault();
    restart();
  }, "submit");
  on("stop", () => stop(running.name).catch(failed));
  on("longer", () => solve({start: latest}));
  on("sweep", () => solve({limits: true}));
  for (const key of ["limits", "one"]) on(key, () => { keep(key, $(key).value); }, "change");
  on("in", () => zoom(.6, (view[0] + view[1]) / 2));
  on("out", () => zoom(1 / .6, (view[0] + view[1]) / 2));
  on("fit", () => setView(0, wholeEnd()));
  on("file", () => takeFiles($("file").files).catch(failed), "change");
  for (const key of WORDS) on(key, () => changed(key, $(key).value.trim()), "change");
  for (const radio of document.getElementsByName("src")) {
    radio.onchange = () => changed("src", radio.value);
  }
  on("places", () => changed("places", Array.from(
    document.querySelectorAll("[name=place]:checked"), box => box.value).join()), "change");
}

function keep(key, text) {
  state[key] = text;
  writeLink();
  showRows();
}

async function open() {
  readLink();
  outdate();
  [loaded, told] = [null, []];
  showForm();
  await solve();
}

// Schedules inside the page, which then needs no server
function openInside() {
  readLink();
  for (const part of document.querySelectorAll("[data-live]")) part.hidden = true;
  for (const {name, ...detail} of choices.rows) {
    const {report} = detail.schedule, cost = report.iteration_time ?? report[report.objective];
    const row = {...report, name, row: name, cost};
    rows.set(name, row);
    details.set(keyOf(row), Promise.resolve(prepared(detail)));
  }
  showRows();
}

async function begin() {
  choices = JSON.parse($("inside").textContent);
  buildLegend();
  listenToForm();
  onresize = later;
  if (choices.rows) return openInside();
  buildForm();
  onhashchange = open;
  onpagehide = () => running && navigator.sendBeacon(
    `api/solves/${running.name}/stop`, new Blob(["{}"], {type: "application/json"}));
  await open();
}

begin().catch(failed);
