"use strict";
const EVERY = 2000, PATIENCE = 5000, SHOWN = 600e3; // milliseconds
const REQUESTS = "http_server_request_duration_seconds_count";
const PUBLISHED = "messaging_client_operation_duration_seconds_count";
const WAITS = "gateway_result_wait_seconds_count";
const [ROUTE, STATUS] = ["http_route", "http_response_status_code"];
const SHARES = [0.5, 0.99];
const [FASTEST, DECADES] = [0.001, 5]; // of the latency's axis: seconds, and powers of ten from there
const rates = [], latencies = []; // [when, value of each line or null]
let before = null, first = null;

function parse(text) {
  const series = [];
  for (const [, name, labels, value] of text.matchAll(/^(\w+)(?:\{(.*)\})? (\S+)$/gm)) {
    const each = {};
    for (const [, key, quoted] of (labels || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      each[key] = quoted.replace(/\\(.)/g, (_, c) => c === "n" ? "\n" : c);
    series.push({name, labels: each, value: Number(value)});
  }
  return series;
}

function total(series, name, wanted = () => true) {
  return series.filter(s => s.name === name && wanted(s.labels)).reduce((sum, s) => sum + s.value, 0);
}

// The bound, in seconds, below which a share of what was measured between two readings lies; or null.
function quantile(name, now, then, share, wanted = () => true) {
  const buckets = name.replace(/count$/, "bucket"), counts = new Map();
  for (const [series, sign] of [[now, 1], [then, -1]])
    for (const s of series)
      if (s.name === buckets && wanted(s.labels))
        counts.set(s.labels.le, (counts.get(s.labels.le) || 0) + sign * s.value);
  const bounds = [...counts];
  const all = bounds.length ? bounds[bounds.length - 1][1] : 0;
  if (all <= 0) return null;
  const [bound] = bounds.find(([, count]) => count >= share * all);
  return bound === "+Inf" ? Infinity : Number(bound);
}

function below(bound) {
  if (bound === null) return "–";
  if (bound === Infinity) return "> 30 s";
  return `≤ ${bound < 1 ? bound * 1000 + " ms" : bound + " s"}`;
}

function count(number, digits = 0) {
  return number.toLocaleString("en", {maximumFractionDigits: digits});
}

function period(seconds) {
  const [days, hours, minutes] = [86400, 3600, 60].map(unit => Math.floor(seconds / unit));
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${seconds} s`;
}

function fill(table, head, rows) {
  table.replaceChildren(...[head, ...rows].map((cells, i) => {
    const row = document.createElement("tr");
    row.append(...cells.map(text => {
      const cell = document.createElement(i ? "td" : "th");
      cell.textContent = text;
      return cell;
    }));
    return row;
  }));
}

// Draw a line for each value of the samples of the last ten minutes; a null interrupts its line.
function draw(samples, now, values, lines, height) {
  samples.push([now, ...values]);
  while (samples[0][0] < now - SHOWN) samples.shift();
  lines.forEach((line, i) => {
    let command = "M", path = "";
    for (const sample of samples) {
      if (sample[i + 1] === null) { command = "M"; continue; }
      const [x, y] = [300 * (1 - (now - sample[0]) / SHOWN), 98 - 96 * height(sample[i + 1])];
      path += `${command}${x},${y}`;
      command = "L";
    }
    line.setAttribute("d", path);
  });
}

function drawRates(now, rate) {
  const greatest = Math.max(rate, ...rates.map(([, each]) => each));
  most.textContent = axisTop.textContent = count(greatest, 1);
  draw(rates, now, [rate], [line], each => each / (greatest || 1));
}

function drawLatencies(now, bounds) {
  draw(latencies, now, bounds, [median, slowest],
    bound => Math.min(1, Math.max(0, Math.log10(bound / FASTEST) / DECADES)));
}

function show(now, then, seconds, ready) {
  const grown = (name, wanted) => Math.max(0, total(now, name, wanted) - total(then, name, wanted));
  const rate = grown(REQUESTS) / seconds;
  const at = performance.now(), bounds = SHARES.map(share => quantile(REQUESTS, now, then, share));
  drawRates(at, rate);
  drawLatencies(at, bounds);
  state.textContent = ready.ready ? "ready" : "not ready";
  state.className = ready.ready ? "good" : "bad";
  about.textContent =
    `version ${ready.version}, strategy ${ready.strategy}, up for ${period(ready.uptime)}`;
  const tiles_ = [
    ["requests per second", count(rate, 1)],
    ["5xx per second", count(grown(REQUESTS, l => l[STATUS][0] === "5") / seconds, 1)],
    ["latency, p50", below(bounds[0])],
    ["latency, p99", below(bounds[1])],
    ["requests in flight", count(total(now, "gateway_in_flight"))],
    ["open connections", count(total(now, "gateway_connections_open"))],
    ["messages confirmed", count(total(now, PUBLISHED, l => !l.error_type))],
    ["messages refused", count(total(now, PUBLISHED, l => l.error_type))],
  ];
  tiles.replaceChildren(...tiles_.map(([name, value]) => {
    const tile = document.createElement("div"), figure = document.createElement("b");
    figure.textContent = value;
    tile.append(figure, name);
    return tile;
  }));
  const answers = now.filter(s => s.name === REQUESTS);
  const statuses = [...new Set(answers.map(s => s.labels[STATUS]))].sort();
  const paths = [...new Set(answers.map(s => s.labels[ROUTE]))].sort();
  fill(routes, ["route", ...statuses, "p50", "p99"], paths.map(path => [path || "(none)",
    ...statuses.map(status => count(total(answers, REQUESTS,
      l => l[ROUTE] === path && l[STATUS] === status))),
    ...SHARES.map(share => below(quantile(REQUESTS, now, first, share, l => l[ROUTE] === path)))]));
  fill(waits, ["strategy", "outcome", "results", "p50", "p99"],
    now.filter(s => s.name === WAITS).map(({labels: {strategy, outcome}, value}) =>
      [strategy, outcome, count(value), ...SHARES.map(share => below(quantile(
        WAITS, now, first, share, l => l.strategy === strategy && l.outcome === outcome)))]));
  fill(processes, ["process", "errors"], ready.children.map(({pid, ...checks}) => [String(pid),
    Object.entries(checks).filter(([, text]) => text).map(pair => pair.join(": ")).join("; ")
      || "none"]));
}

async function refresh() {
  let pause = EVERY;
  try {
    const signal = AbortSignal.timeout(PATIENCE);
    const [metrics, readiness] = await Promise.all(
      [fetch("metrics", {signal}), fetch("readyz", {signal})]);
    if (!metrics.ok) throw new Error(`metrics: ${metrics.status}`);
    const series = parse(await metrics.text()), ready = await readiness.json();
    const last = before, at = performance.now();
    before = {series, at};
    first ??= series;
    if (last) show(series, last.series, (at - last.at) / 1000, ready);
    else pause /= 4;
  } catch (error) {
    state.textContent = `no answer: ${error.message}`;
    state.className = "bad";
  }
  setTimeout(refresh, pause);
}
const [state, about, tiles, most, axisTop, line, median, slowest, routes, waits, processes] =
  ["state", "about", "tiles", "most", "top", "line", "median", "slowest", "routes", "waits", "processes"]
    .map(id => document.getElementById(id));
refresh();
