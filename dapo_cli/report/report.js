"use strict";
// The page counts its own errors and charts, so that a test without eyes can see them.
const root = document.documentElement;
root.dataset.errors = "0";
window.addEventListener("error", () => { root.dataset.errors = String(Number(root.dataset.errors) + 1); });

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 460, HEIGHT = 220, LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 24;
const AXIS_NAMES = { step: "steps", updates: "updates", tokens: "tokens generated", hours: "hours" };
const state = { axis: "step", bands: false, raw: true };

function element(name, attributes, parent, text) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;  // never as HTML: models write what they like
  if (parent) parent.append(made);
  return made;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toPrecision(3) + "G";
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, count) {
  const span = high - low || 1, raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

const color = (run) => `var(--${run === "reference" ? "reference" : "run" + (run % 6)})`;

// Lines of a chart: {run, dashed, x, mean, low, high, smooth, name}
function linesOf(keys) {
  const lines = [];
  const sources = data.runs.map((run, number) => [number, run]);
  if (data.reference) sources.unshift(["reference", data.reference]);
  for (const [number, run] of sources) {
    keys.forEach((key, position) => {
      const curve = run.curves[key];
      if (!curve) return;
      lines.push({ run: number, dashed: position > 0, key, name: run.name, x: curve.at.map((n) => run.axes[state.axis][n]), ...curve });
    });
  }
  return lines;
}

function frame(parent, title, xs, ys) {
  const figure = element("figure", {}, parent);
  element("h3", {}, figure, title);
  const svg = element("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title }, figure);
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  if (y0 === y1) { const pad = Math.abs(y0) * 0.1 || 0.5; y0 -= pad; y1 += pad; }
  const pad = (y1 - y0) * 0.05;
  y0 -= pad; y1 += pad;
  const X = (x) => LEFT + ((x - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const Y = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  for (const y of ticks(y0, y1, 4)) {
    element("svg:line", { x1: LEFT, x2: WIDTH - RIGHT, y1: Y(y), y2: Y(y), class: "grid" }, svg);
    element("svg:text", { x: LEFT - 5, y: Y(y) + 4, "text-anchor": "end" }, svg, short(y));
  }
  for (const x of ticks(x0, x1, 5)) element("svg:text", { x: X(x), y: HEIGHT - 8, "text-anchor": "middle" }, svg, short(x));
  root.dataset.charts = String(Number(root.dataset.charts || 0) + 1);
  return { figure, svg, X, Y, x0, x1, y0, y1 };
}

function path(xs, ys, X, Y) {
  return xs.map((x, n) => `${n ? "L" : "M"}${X(x).toFixed(1)} ${Y(ys[n]).toFixed(1)}`).join("");
}

function extent(lines) {
  let low = Infinity, high = -Infinity;
  for (const line of lines) {
    for (const value of state.raw ? line.low : line.smooth) if (value < low) low = value;
    for (const value of state.raw ? line.high : line.smooth) if (value > high) high = value;
  }
  return [low, high];
}

function drawChart(parent, chart) {
  const lines = linesOf(chart.keys);
  if (!lines.length) return;
  const bands = state.bands ? data.bands.filter((band) => chart.keys.includes(band.metric)) : [];
  const xs = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
  const ys = [...extent(lines), ...bands.flatMap((band) => [band.low, band.high])];
  const title = chart.unit ? `${chart.title} (${chart.unit})` : chart.title;
  const { figure, svg, X, Y, x0, x1 } = frame(parent, title, xs, ys);
  for (const band of bands) {
    const box = { x: LEFT, y: Y(band.high), width: WIDTH - LEFT - RIGHT, height: Math.max(Y(band.low) - Y(band.high), 1), class: "band" };
    element("svg:title", {}, element("svg:rect", box, svg), `32B, ${band.source}`);
  }
  for (const line of lines) {
    const style = `stroke:${color(line.run)}`;
    if (state.raw) {
      const zigzag = line.x.flatMap((x, n) => (line.low[n] === line.high[n] ? [[x, line.mean[n]]] : [[x, line.low[n]], [x, line.high[n]]]));
      element("svg:path", { d: path(zigzag.map((p) => p[0]), zigzag.map((p) => p[1]), X, Y), class: "raw", style }, svg);
    }
    element("svg:path", { d: path(line.x, line.smooth, X, Y), class: line.dashed ? "smooth dashed" : "smooth", style }, svg);
  }
  const caption = element("figcaption", {}, figure);
  const usual = [...chart.keys.filter((key) => lines.some((line) => line.key === key)).map((key, n) => (n ? `dashed: ${key}` : key)),
    ...bands.map((band) => `shaded: 32B, ${band.source}`)].join("; ");
  caption.textContent = usual;
  hover(svg, lines, X, x0, x1, caption, usual);
}

function hover(svg, lines, X, x0, x1, caption, usual) {
  const cursor = element("svg:line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor", visibility: "hidden" }, svg);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const x = x0 + ((at - LEFT) / (WIDTH - LEFT - RIGHT)) * (x1 - x0);
    const parts = lines.map((line) => {
      let low = 0, high = line.x.length - 1;
      while (low < high) { const mid = (low + high) >> 1; if (line.x[mid] < x) low = mid + 1; else high = mid; }
      return `${lines.length > 1 ? line.name + " " + line.key.split("/").pop() + " " : ""}${short(line.mean[low])}`;
    });
    cursor.setAttribute("x1", at); cursor.setAttribute("x2", at); cursor.setAttribute("visibility", "visible");
    caption.textContent = `${AXIS_NAMES[state.axis]} ${short(x)}: ${parts.join(", ")}`;
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); caption.textContent = usual; });
}

function drawPoints(parent, title, sets, note) {
  const ys = sets.flatMap((set) => set.points.flatMap((p) => [p.value, ...(p.inner || []), ...(p.outer || [])])).filter((y) => y !== null && y !== undefined);
  const xs = sets.flatMap((set) => set.points.map((p) => p.step));
  if (!xs.length) return;
  const { figure, svg, X, Y } = frame(parent, title, xs, ys);
  for (const set of sets) {
    const style = `stroke:${color(set.run)}`;
    for (const p of set.points) {
      for (const [range, width] of [[p.outer, 1], [p.inner, 3]]) {
        if (range && range[0] !== null && range[0] !== undefined)
          element("svg:line", { x1: X(p.step), x2: X(p.step), y1: Y(range[0]), y2: Y(range[1]), style: `${style};stroke-width:${width}` }, svg);
      }
      const dot = element("svg:circle", { cx: X(p.step), cy: Y(p.value), r: 3.5, style: `fill:${color(set.run)}` }, svg);
      element("svg:title", {}, dot, `${set.name}, step ${p.step}: ${short(p.value)}`);
    }
    element("svg:path", { d: path(set.points.map((p) => p.step), set.points.map((p) => p.value), X, Y), class: "raw", style }, svg);
  }
  element("figcaption", {}, figure, note);
}

function drawAll() {
  root.dataset.charts = "0";
  const place = document.getElementById("charts");
  place.replaceChildren();
  for (const chart of data.charts) drawChart(place, chart);
  const scores = document.getElementById("evaluations");
  scores.replaceChildren();
  const keys = [...new Set(data.runs.flatMap((run) => run.evaluations.map((each) => each.key)))];
  for (const key of keys) {
    const sets = data.runs.flatMap((run, number) => run.evaluations.filter((each) => each.key === key).map((each) => ({
      run: number, name: run.name, points: each.points.map((p) => ({ step: p.step, value: p.value, inner: p.samples, outer: p.problems })) })));
    if (data.reference && data.reference.curves[key]) {
      const curve = data.reference.curves[key];
      sets.unshift({ run: "reference", name: data.reference.name, points: curve.at.map((n, i) => ({ step: data.reference.axes.step[n], value: curve.mean[i] })) });
    }
    drawPoints(scores, key.replace("eval/", ""), sets, "bars: 95% on these problems (thick) and on problems like these (thin); over steps");
  }
  const reflection = document.getElementById("reflection");
  reflection.replaceChildren();
  drawPoints(reflection, "Responses that re-check, go back or reconsider", data.runs.map((run, number) => ({
    run: number, name: run.name, points: run.reflections.map((p) => ({ step: p[0], value: p[1], inner: [p[2], p[3]] })) })).filter((set) => set.points.length),
    "share of the stored responses, 95% interval; by a list of phrases");
}

function shortened(parent, parts) {
  element("pre", {}, parent, parts[0]);
  if (!parts[1]) return;
  element("p", { class: "soft small" }, parent, `… ${parts[1].toLocaleString()} characters in the middle left out …`);
  element("pre", {}, parent, parts[2]);
}

function browser() {
  const place = document.getElementById("rollouts"), controls = document.getElementById("filters");
  const all = data.runs.flatMap((run) => run.rollouts.map((rollout) => ({ ...rollout, run: run.name })));
  const choices = { run: new Set(all.map((r) => r.run)), step: new Set(all.map((r) => r.step)), label: new Set(all.flatMap((r) => r.labels)) };
  const chosen = {};
  for (const [name, values] of Object.entries(choices)) {
    if (name === "run" && values.size < 2) continue;
    const label = element("label", {}, controls, name === "label" ? "chosen as " : name + " ");
    const select = element("select", { id: "filter-" + name }, label);
    element("option", { value: "" }, select, "all");
    for (const value of values) element("option", { value }, select, value);
    select.addEventListener("change", () => { chosen[name] = select.value; list(); });
  }
  const count = element("span", { class: "soft", id: "rollout-count" }, controls);
  function list() {
    place.replaceChildren();
    const shown = all.filter((r) => (!chosen.run || r.run === chosen.run) && (!chosen.step || String(r.step) === chosen.step) && (!chosen.label || r.labels.includes(chosen.label)));
    count.textContent = `${shown.length} of ${all.length} chosen rollouts`;
    for (const r of shown) {
      const details = element("details", {}, place);
      const run = choices.run.size > 1 ? r.run + " " : "";
      element("summary", {}, details, `${run}step ${r.step}: ${r.labels.join(", ")} · ${r.outcome}, reward ${short(r.reward)}, ${r.tokens} tokens`);
      details.addEventListener("toggle", () => {
        if (!details.open || details.dataset.filled) return;
        details.dataset.filled = "yes";
        const facts = [["problem", `${r.problem}, sample ${r.sample}, ${r.kept ? "trained on" : "not trained on"}`],
          ["extracted answer", r.prediction === null ? "none" : r.prediction], ["ground truth", r.ground_truth],
          ["reward", `${r.reward} = score ${r.score} + overlong penalty ${r.overlong_penalty}`],
          ["ended by", r.finish_reason], ...(r.verifier_error ? [["verifier error", r.verifier_error]] : [])];
        const table = element("table", {}, details);
        for (const [name, value] of facts) { const row = element("tr", {}, table); element("th", {}, row, name); element("td", {}, row, value); }
        element("p", { class: "soft small" }, details, "prompt"); shortened(details, r.prompt);
        element("p", { class: "soft small" }, details, "response"); shortened(details, r.response);
      }, { once: false });
    }
  }
  list();
}

for (const input of document.querySelectorAll("[name=axis]")) input.addEventListener("change", () => { state.axis = input.value; drawAll(); });
document.getElementById("raw").addEventListener("change", (event) => { state.raw = event.target.checked; drawAll(); });
document.getElementById("bands").addEventListener("change", (event) => { state.bands = event.target.checked; drawAll(); });
const legend = document.getElementById("legend");
data.runs.forEach((run, number) => { const item = element("li", {}, legend); element("span", { class: "swatch", style: `background:${color(number)}` }, item); item.append(run.name); });
if (data.reference) { const item = element("li", {}, legend); element("span", { class: "swatch", style: `background:${color("reference")}` }, item); item.append(data.reference.name); }
drawAll();
browser();
root.dataset.ready = "yes";
