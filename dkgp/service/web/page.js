// The page of `dkgp serve`. It shows all content from the service as text, never as markup.
"use strict";

const STATES = ["running", "queued", "done", "not_converged", "failed", "cancelled"];
const TERMINAL = new Set(["done", "not_converged", "failed", "cancelled"]);
const POLL_MS = 2000, SLOWEST_POLL_MS = 15000, PAGE = 50, MOST_ROWS = 1000, TAIL = 200, MOST_POINTS = 1200;
const TOKEN_KEY = "dkgp-token";

const byId = (id) => document.getElementById(id);
const page = {token: null, filter: null, limit: PAGE, rows: new Map(), job: null, flags: {}, timer: 0, wait: POLL_MS};

// ------------------------------------------------------------------------------------------------ talking to the service

class Refused extends Error {}

async function call(path, options = {}) {
  const token = page.token;
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  const response = await fetch(path, {...options, headers, cache: "no-store"});
  if (response.ok) return response;
  let message = `the service answered with ${response.status}`;
  try { message = (await response.json()).error.message; } catch { /* no JSON: the status says enough */ }
  // Ask once per token, even if several calls used it.
  if (response.status === 401 && (token === page.token || !token)) {
    askForToken(token ? "The service does not accept this token." : "");
  }
  throw new Refused(message);
}

const read = async (path, options) => (await call(path, options)).json();

async function* eventsOf(id, after, signal) {
  const response = await call(`/v1/jobs/${id}/events?follow=true&after=${after}`, {signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
  }
}

// ----------------------------------------------------------------------------------------------------------------- token

function remember(token) {
  page.token = token;
  if (token) sessionStorage.setItem(TOKEN_KEY, token); else sessionStorage.removeItem(TOKEN_KEY);
  byId("forget").hidden = !token;
}

// Take the token from the address that `dkgp serve` prints, and remove it from the address and the browser's history.
function takeToken() {
  const given = /^#token=([\x21-\x7e]+)$/.exec(location.hash);
  if (!given) return false;
  history.replaceState(null, "", location.pathname);
  remember(given[1]);
  return true;
}

function askForToken(message) {
  remember(null);
  clearTimeout(page.timer);
  closeJob();
  byId("jobs").hidden = true;
  byId("about").textContent = "";
  byId("sign-in").hidden = false;
  byId("sign-in-error").textContent = message;
  byId("token").focus();
}

async function start() {
  byId("sign-in").hidden = true;
  byId("jobs").hidden = false;
  await refresh();
  openFromAddress();
}

// ------------------------------------------------------------------------------------------------------- words and numbers

function seconds(from, to) {
  return from ? Math.max(0, ((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000) : null;
}

function duration(value) {
  if (value === null) return "";
  const s = Math.round(value);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const age = (value) => duration(value).replace(/ min .*/, " min").replace(/ h .*/, " h").replace(/ d .*/, " d");
const plainState = (state) => state.replace("_", " ");

function figure(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
  if (value === 0 || Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e12 ? value.toLocaleString("en", {maximumSignificantDigits: 6}) : value.toExponential(2);
}

function amount(progress) {
  if (!progress) return "";
  if (typeof progress.column_passes === "number") return `${progress.column_passes.toFixed(1)} passes`;
  if (typeof progress.done !== "number") return "";
  return `${figure(progress.done)}${typeof progress.total === "number" ? ` of ${figure(progress.total)}` : ""} ${progress.done === 1 && typeof progress.total !== "number" ? (progress.unit ?? "").replace(/s$/, "") : progress.unit ?? ""}`;
}

// The value that a solve reduces to its tolerance: its name in the records, and in the command line's progress lines.
const MEASURES = {gradient_inf_norm: "max|g|", duality_gap: "relative gap", distance: "distance", relative_residual: "distance"};
const PLAIN_MEASURES = {"max|g|": "largest residual", "relative gap": "distance to the best fit, relative", distance: "distance to the minimum"};
const measured = (progress) => {
  if (typeof progress?.best_log_marginal_likelihood === "number") return null;
  const measure = progress?.measure ?? "gradient_inf_norm", value = progress?.[measure];
  return typeof value === "number" && Object.hasOwn(MEASURES, measure) ? {name: MEASURES[measure], value} : null;
};
const reached = (progress) => {
  const likelihood = progress?.best_log_marginal_likelihood;
  if (typeof likelihood === "number") return `best log likelihood ${likelihood.toFixed(2)}`;
  const found = measured(progress);
  return found ? `${PLAIN_MEASURES[found.name]} ${found.value.toExponential(2)}` : "";
};

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ------------------------------------------------------------------------------------------------------------ list of jobs

async function refresh() {
  clearTimeout(page.timer);
  try {
    const states = page.filter ? `&state=${page.filter}` : "";
    const [found, service] = await Promise.all([
      read(`/v1/jobs?limit=${page.limit}${states}`),
      page.service ?? read("/v1/service"),
    ]);
    page.service = service;
    const most = service.limits.concurrent_jobs;
    put(byId("about"), `version ${service.version}, cluster: ${service.cluster}, ` +
      `at most ${most} ${most === 1 ? "job" : "jobs"} at a time`);
    put(byId("status"), "");
    showFilters(found.counts);
    showRows(found.jobs, service.caller.scope === "admin");
    if (page.job) await page.job.update();
    page.wait = POLL_MS;
  } catch (error) {
    if (!byId("sign-in").hidden) return;
    page.wait = Math.min(2 * page.wait, SLOWEST_POLL_MS);
    put(byId("status"), error instanceof Refused ? error.message : "The service does not answer. This page tries again.");
  }
  clearTimeout(page.timer);
  if (!document.hidden) page.timer = setTimeout(refresh, page.wait);
}

function showFilters(counts) {
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0);
  const group = byId("filters");
  if (!group.childElementCount) {
    for (const state of [null, ...STATES]) {
      const button = element("button");
      button.type = "button";
      button.dataset.state = state ?? "";
      button.addEventListener("click", () => { page.filter = state; page.limit = PAGE; refresh(); });
      group.append(button);
    }
  }
  for (const button of group.children) {
    const state = button.dataset.state;
    put(button, `${state ? plainState(state) : "all"} ${(state ? counts[state] ?? 0 : all).toLocaleString("en")}`);
    button.setAttribute("aria-pressed", String((page.filter ?? "") === state));
  }
  const shown = page.filter ? counts[page.filter] ?? 0 : all;
  byId("more").hidden = shown <= page.limit || page.limit >= MOST_ROWS;
  byId("empty").hidden = shown > 0;
  put(byId("empty"), page.filter ? `No job is ${plainState(page.filter)}.`
    : "No jobs yet. Submit one: dkgp submit fit DATA.csv --target COLUMN");
}

function makeRow(id) {
  const row = element("tr");
  row.dataset.job = id;
  const open = element("button");
  open.type = "button";
  const cell = element("td");
  cell.append(open, element("span", id, "id"));
  row.append(cell, element("td"), element("td"), element("td"));
  for (let i = 0; i < 4; i += 1) row.append(element("td", "", "number"));
  row.children[3].append(element("span", "", "state"));
  row.addEventListener("click", () => { location.hash = id; });
  return row;
}

// Seconds of all waits and attempts, including the current one.
function waited(job) {
  return job.waited_seconds + (job.state === "queued" ? seconds(job.queued) : 0);
}

function ran(job) {
  return job.ran_seconds + (job.state === "running" ? seconds(job.started) : 0);
}

function showRows(jobs, withOwners) {
  byId("owner-column").hidden = !withOwners;
  const body = byId("rows"), kept = new Map();
  jobs.forEach((job, index) => {
    const row = page.rows.get(job.id) ?? makeRow(job.id);
    kept.set(job.id, row);
    // Moving a row would take the keyboard's focus from it.
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
    const [name, owner, command, state, old, took, passes, measure] = row.children;
    put(name.firstChild, job.name || `${job.command} job`);
    owner.hidden = !withOwners;
    put(owner, job.owner ?? "");
    put(command, job.command);
    put(state.firstChild, plainState(job.state));
    state.firstChild.className = `state ${job.state}`;
    put(old, `${age(seconds(job.created))} ago`);
    put(took, job.state === "queued" ? "" : duration(ran(job)));
    const progress = job.state === "done" ? null : job.progress;
    put(passes, amount(progress));
    put(measure, reached(progress));
    row.setAttribute("aria-current", String(page.job?.id === job.id));
  });
  for (const [id, row] of page.rows) if (!kept.has(id)) row.remove();
  page.rows = kept;
}

// ---------------------------------------------------------------------------------------------------------------- one job

class JobView {
  constructor(id) {
    this.id = id;
    this.abort = new AbortController();
    this.points = [];
    this.tolerance = null;
    this.measure = null;
    this.last = -1;
    this.following = false;
    this.drawing = false;
  }

  async open() {
    byId("events").replaceChildren();
    byId("curve").hidden = true;
    put(byId("action-error"), "");
    try {
      const curve = await read(`/v1/jobs/${this.id}/curve`, {signal: this.abort.signal});
      this.points = curve.points;
      this.tolerance = curve.tolerance;
      this.measure = curve.measure;
      this.last = Math.max(-1, curve.last - TAIL);
      await this.update();
      byId("detail").hidden = false;
      byId("jobs").classList.add("open");
      byId("detail-title").focus({preventScroll: true});
      byId("detail").scrollIntoView({block: "nearest"});
      this.draw();
      this.follow();
    } catch (error) {
      if (this.abort.signal.aborted) return;
      put(byId("status"), error.message);
      if (error instanceof Refused) location.hash = "";
    }
  }

  async update() {
    const job = await read(`/v1/jobs/${this.id}`, {signal: this.abort.signal});
    const flags = await flagsOf(job.command);
    if (page.job !== this) return;
    this.job = job;
    page.flags = flags;
    showJob(job);
    if (!TERMINAL.has(job.state) && !this.following && this.opened) this.follow();
  }

  async follow() {
    this.following = this.opened = true;
    try {
      for await (const event of eventsOf(this.id, this.last, this.abort.signal)) {
        this.last = event.sequence;
        this.take(event);
      }
      await this.update();
    } catch (error) {
      if (this.abort.signal.aborted) return;
    }
    // If the job continues, the next update follows it again.
    this.following = false;
  }

  take(event) {
    const passes = event.column_passes, found = measured(event);
    if (event.kind === "progress" && typeof passes === "number" && found) {
      // A run that was resumed repeats the rounds since its checkpoint; another solve begins at none.
      while (this.points.length && (this.points.at(-1)[0] >= passes || this.measure !== found.name)) this.points.pop();
      this.measure = found.name;
      this.points.push([passes, found.value]);
      if (this.points.length > MOST_POINTS) this.points = this.points.filter((_, i, all) => i % 2 === 0 || i === all.length - 1);
      this.tolerance = event.tolerance ?? this.tolerance;
      this.draw();
    }
    if (event.kind === "state") this.update().catch(() => {});
    showEvent(event);
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      if (page.job === this) drawCurve(this.points, this.tolerance, this.measure);
    });
  }
}

function openFromAddress() {
  const id = location.hash.slice(1);
  if (page.job?.id === id || !byId("sign-in").hidden) return;
  closeJob();
  if (!/^[0-9a-f]{12}$/.test(id)) return;
  page.job = new JobView(id);
  page.rows.get(id)?.setAttribute("aria-current", "true");
  page.job.open();
}

function closeJob() {
  if (!page.job) return;
  page.job.abort.abort();
  const row = page.rows.get(page.job.id);
  row?.setAttribute("aria-current", "false");
  row?.querySelector("button").focus({preventScroll: true});
  page.job = null;
  byId("detail").hidden = true;
  byId("jobs").classList.remove("open");
}

function showJob(job) {
  put(byId("detail-title"), job.name || `${job.command} job`);
  put(byId("detail-state"), job.cancel_requested && job.state === "running" ? "being cancelled" : plainState(job.state));
  byId("detail-state").className = `state ${job.state}`;
  byId("cancel").hidden = TERMINAL.has(job.state);
  byId("cancel").disabled = job.cancel_requested;
  byId("resume").hidden = !TERMINAL.has(job.state) || job.state === "done";
  byId("report").hidden = !/\.html$/.test(job.document?.report ?? "");
  const link = /^https?:\/\//.test(job.dashboard_link ?? "") && job.state === "running" ? job.dashboard_link : null;
  byId("dashboard").hidden = !link;
  if (link) byId("dashboard").href = link;
  byId("error").hidden = !job.error;
  put(byId("error"), job.error ? `${job.error.type}: ${spelled(job.error.message)}` : "");
  const progress = job.state === "done" ? {} : job.progress ?? {};
  showPairs(byId("facts"), [
    ["id", job.id],
    ["submitted", new Date(job.created).toLocaleString(undefined, {dateStyle: "medium", timeStyle: "short"})],
    ["waiting time", duration(waited(job))],
    ["running time", job.started ? duration(ran(job)) : ""],
    ["attempt", job.attempt > 1 ? String(job.attempt) : ""],
    [(progress.phase !== progress.unit && progress.phase) || "progress", amount(progress)],
    [PLAIN_MEASURES[measured(progress)?.name] ?? "", measured(progress)?.value.toExponential(2) ?? ""],
    ["time left", job.state === "running" && typeof progress.seconds_left === "number" ? `about ${duration(progress.seconds_left)}` : ""],
    ["time limit", job.deadline_seconds ? duration(job.deadline_seconds) : ""],
    ["owner", job.owner ?? ""],
    ["exit code", job.exit_code === null ? "" : String(job.exit_code)],
  ].filter(([, value]) => value !== ""));
  byId("result-part").hidden = !job.document;
  showPairs(byId("result"), summary(job.document ?? {}));
  showPairs(byId("figures"), flat(job.document ?? {}));
  showPairs(byId("options"), typed(job.options, page.flags));
}

let flagsRead = null;

async function flagsOf(command) {
  try {
    flagsRead ??= read("/flags.json");
    return (await flagsRead)[command] ?? {};
  } catch {
    flagsRead = null;
    return {};
  }
}

// A message with the names of options, in backticks, as they are typed.
function spelled(text) {
  return text.replace(/`(\w+)`/g, (all, name) => {
    const path = Object.keys(page.flags).find((each) => each === name || each.endsWith(`.${name}`));
    return path ? page.flags[path][0] : all;
  });
}

// Options as they are typed on the command line. Options without a flag keep the name of their field.
function typed(options, flags, path = "") {
  return Object.entries(options).flatMap(([name, value]) => {
    const names = flags[path + name] ?? [name];
    if (value === null) return [];
    if (typeof value === "boolean") return [[names.at(value ? 0 : -1), value || names.at(-1).startsWith("--no-") ? "yes" : "no"]];
    if (typeof value === "object" && !Array.isArray(value) && !flags[path + name]) return typed(value, flags, `${path}${name}.`);
    if (name.endsWith("seconds")) return [[names[0], `${figure(value)} s`]];
    if (name.endsWith("bytes") && typeof value === "number") return [[names[0], worded(name, value)]];
    return flat({[names[0]]: value}).map(([label, text]) => [names[0], label.includes(": ") ? `${label.split(": ").at(-1)} ${text}` : text]);
  });
}

// Figures of a result in the words of the command line's tables, the most important first.
const WORDS = {
  converged: "converged", error_rate: "error", balanced_error: "balanced error", auc: "area under the curve",
  log_loss: "log loss", rmse_raw: "root mean square error", mae_raw: "mean absolute error", r_squared: "R²",
  nlpd_raw: "negative log predictive density", coverage_95: "coverage of 95 % intervals",
  gradient_inf_norm: "largest residual", noise_variance: "noise variance", seconds: "seconds",
  peak_memory_bytes: "peak memory, all processes", report: "report", out: "stored",
};
const SHARES = new Set(["error_rate", "balanced_error"]);

function summary(document) {
  const way = document.choice?.way?.words;
  const findings = (document.evaluation ?? document).verdict ?? [];
  const rows = Object.entries(WORDS).flatMap(([name, words]) => {
    const value = document[name] ?? document.evaluation?.[name];
    return typeof value === "object" || value === undefined ? [] : [[words, worded(name, value)]];
  });
  const model = way ? [["model", way], ["why", document.choice.reason]] : [];
  return [...model, ...kriged(document), ...rows, ...findings.map((finding) => ["verdict", `${finding.text}. ${finding.advice}.`])];
}

// The variogram and the accuracy of a kriging.
function kriged(document) {
  const variogram = document.variogram?.models?.[0]?.variogram ?? document.variogram;
  const bound = (document.grid ?? document).mean_error_bound;
  return [
    ...typeof variogram?.psill === "number" ? [["variogram", `${variogram.model}: partial sill ${figure(variogram.psill)}, range ${figure(variogram.range)}`]] : [],
    ...typeof bound === "number" ? [["mean certified within", `worst case ${figure(bound)} (units of the target)`]] : [],
  ];
}

function worded(name, value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (name.endsWith("_bytes")) return `${figure(Math.round(value / 2 ** 20))} MiB`;
  return SHARES.has(name) ? `${(100 * value).toFixed(2)}%` : figure(value);
}

function flat(value, prefix = "") {
  return Object.entries(value).flatMap(([name, item]) => {
    const label = prefix + name.replaceAll("_", " ");
    if (item === null || Array.isArray(item) && !item.length) return [];
    if (Array.isArray(item)) {
      const simple = item.every((part) => typeof part !== "object");
      return [[label, simple && item.length <= 8 ? item.map(figure).join(", ") : `${item.length} entries`]];
    }
    return typeof item === "object" ? flat(item, `${label}: `) : [[label, figure(item)]];
  });
}

function showPairs(list, pairs) {
  const key = JSON.stringify(pairs);
  if (list.dataset.shown === key) return;
  list.dataset.shown = key;
  const nodes = pairs.flatMap(([name, value]) => [element("dt", name), element("dd", value)]);
  if (list.classList.contains("facts")) {
    const groups = [];
    for (let i = 0; i < nodes.length; i += 2) {
      const group = element("div");
      group.append(nodes[i], nodes[i + 1]);
      groups.push(group);
    }
    list.replaceChildren(...groups);
  } else {
    list.replaceChildren(...nodes);
  }
}

function showEvent(event) {
  const words = {
    state: () => plainState(event.state) + (event.attempt > 1 ? `, attempt ${event.attempt}` : ""),
    progress: () => [(event.phase !== event.unit && event.phase) || event.label, amount(event), reached(event)].filter(Boolean).join(", "),
    document: () => "finished; see the result above",
    error: () => spelled(event.error?.message ?? "failed"),
    note: () => spelled(event.message ?? ""),
    warning: () => spelled(event.message ?? ""),
  };
  const text = (words[event.kind] ?? (() => event.message ?? ""))();
  const list = byId("events"), line = element("li", "", event.kind === "error" ? "error-event" : event.kind);
  const time = element("time", new Date(event.time).toLocaleTimeString());
  time.dateTime = event.time;
  line.append(time, text);
  const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 30;
  list.append(line);
  while (list.childElementCount > TAIL) list.firstElementChild.remove();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

// ------------------------------------------------------------------------------------------------------- convergence curve

const PLOT = {left: 62, right: 626, top: 12, bottom: 262};

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function niceStep(span, count) {
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((step) => step * power >= raw);
}

function drawCurve(all, tolerance, measure) {
  const points = all.filter(([, g]) => g > 0);
  // A direct solver has one round, and no curve.
  byId("curve").hidden = points.length < 2;
  if (points.length < 2) return;
  const heights = points.map(([, g]) => Math.log10(g)), goal = tolerance > 0 ? Math.log10(tolerance) : null;
  const known = goal === null ? heights : [...heights, goal];
  const high = Math.ceil(Math.max(...known) + 1e-9), low = Math.floor(Math.min(...known) - 0.15);
  const first = Math.min(0, points[0][0]), last = Math.max(points.at(-1)[0], first + 1);
  const x = (passes) => PLOT.left + (passes - first) / (last - first) * (PLOT.right - PLOT.left);
  const y = (power) => PLOT.top + (high - power) / (high - low) * (PLOT.bottom - PLOT.top);
  const parts = [];
  const everyPower = Math.max(1, Math.ceil((high - low) / 7));
  for (let power = low; power <= high; power += everyPower) {
    parts.push(shape("line", {class: "grid", x1: PLOT.left, x2: PLOT.right, y1: y(power), y2: y(power)}));
    parts.push(shape("text", {x: PLOT.left - 8, y: y(power) + 4, "text-anchor": "end"}, `1e${power}`));
  }
  const step = niceStep(last - first, 6);
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
    parts.push(shape("text", {x: x(at), y: PLOT.bottom + 17, "text-anchor": "middle"}, figure(Number(at.toPrecision(6)))));
  }
  parts.push(shape("text", {x: (PLOT.left + PLOT.right) / 2, y: PLOT.bottom + 34, "text-anchor": "middle"}, "column passes"));
  if (goal !== null) {
    parts.push(shape("line", {class: "tolerance", x1: PLOT.left, x2: PLOT.right, y1: y(goal), y2: y(goal)}));
    parts.push(shape("text", {class: "tolerance-label", x: PLOT.left + 6, y: y(goal) - 6}, `tolerance ${tolerance.toExponential()}`));
  }
  const path = points.map(([passes], i) => `${x(passes).toFixed(1)},${y(heights[i]).toFixed(1)}`);
  parts.push(shape("polyline", {class: "curve", points: path.join(" "), "data-points": points.length}));
  parts.push(shape("circle", {class: "point", cx: x(points.at(-1)[0]), cy: y(heights.at(-1)), r: 4}));
  byId("plot").replaceChildren(...parts);
  put(byId("curve-caption"), `${PLAIN_MEASURES[measure] ?? measure} against column passes: ${points.at(-1)[1].toExponential(2)} ` +
    `after ${points.at(-1)[0].toFixed(1)} passes`);
}

// ------------------------------------------------------------------------------------------------------------------ wiring

async function change(verb) {
  const job = page.job;
  if (!job) return;
  put(byId("action-error"), "");
  byId(verb).disabled = true;
  try {
    await call(`/v1/jobs/${job.id}/${verb}`, {method: "POST"});
    await refresh();
  } catch (error) {
    put(byId("action-error"), error.message);
  }
  byId(verb).disabled = Boolean(verb === "cancel" && page.job?.job?.cancel_requested);
}

// A link would carry no token.
async function saveReport() {
  const job = page.job;
  if (!job) return;
  put(byId("action-error"), "");
  try {
    const address = URL.createObjectURL(await (await call(`/v1/jobs/${job.id}/report`)).blob());
    const link = element("a");
    link.href = address;
    link.download = `report-${job.id}.html`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  } catch (error) {
    put(byId("action-error"), error.message);
  }
}

byId("report").addEventListener("click", saveReport);
byId("cancel").addEventListener("click", () => change("cancel"));
byId("resume").addEventListener("click", () => change("resume"));
byId("close").addEventListener("click", () => { location.hash = ""; });
byId("more").addEventListener("click", () => { page.limit = Math.min(MOST_ROWS, 2 * page.limit); refresh(); });
byId("forget").addEventListener("click", () => askForToken(""));
byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  remember(byId("token").value.trim());
  byId("token").value = "";
  start();
});
addEventListener("hashchange", () => { if (takeToken()) start(); else openFromAddress(); });
addEventListener("keydown", (event) => { if (event.key === "Escape" && page.job) location.hash = ""; });
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && byId("sign-in").hidden) refresh();
});

remember(sessionStorage.getItem(TOKEN_KEY));
takeToken();
if (document.documentElement.dataset.token === "required" && !page.token) askForToken(""); else start();
