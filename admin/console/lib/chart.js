// Line and area charts of figures over time, as SVG.
//
// The drawing itself is hidden from screen readers. The plot is a slider over time: the pointer and the arrow keys choose
// a time, and the figures of that time are its text. Without a chosen time they are the latest.

import { append, h, s, setText } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 600;
const HEIGHT = 150;
const TOP = 8;
const BOTTOM = 4;
// At least so many seconds are shown, so that the first samples of a node are not stretched over the whole width.
const SPAN_MIN = 300;
// A pause of so many seconds, or of four intervals, is a gap of the line: nothing was recorded.
const GAP_MIN = 30;

// The least "round" number (1, 2, 2.5 or 5 times a power of the base) that is not below a value.
function ceiling(value, base = 10) {
  if (!(value > 0)) return 1;
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  const steps = base === 10 ? [1, 2, 2.5, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return power * (steps.find((step) => step * power >= value * 0.999999) ?? base);
}

// The height of a share of the scale, from the top.
const at = (share, whole) => TOP + (1 - Math.max(0, Math.min(1, share))) * (whole - TOP - BOTTOM);

// A scale from 0 to a round number: `share(value)` of its height, and `value(share)`.
function linear(values, minimum, base) {
  const max = ceiling(values.reduce((most, value) => (value > most ? value : most), minimum), base);
  return { share: (value) => value / max, value: (share) => share * max };
}

// A scale between powers of ten, at least two of them apart.
function logarithmic(values, minimum) {
  const present = values.filter((value) => value > 0);
  const least = Math.floor(Math.log10(present.reduce((least, value) => Math.min(least, value), minimum)));
  const most = Math.max(least + 2, Math.ceil(Math.log10(present.reduce((most, value) => Math.max(most, value), minimum))));
  return { share: (value) => (Math.log10(value) - least) / (most - least), value: (share) => 10 ** (least + share * (most - least)) };
}

// The indices of samples in runs without a missing value or a gap.
function runsOf(length, has, isGap) {
  const runs = [];
  let run = [];
  for (let index = 0; index < length; index += 1) {
    if (run.length > 0 && (!has(index) || isGap(index))) {
      runs.push(run);
      run = [];
    }
    if (has(index)) run.push(index);
  }
  if (run.length > 0) runs.push(run);
  return runs;
}

const points = (run, x, y) => run.map((index) => `${x(index).toFixed(1)} ${y(index).toFixed(1)}`).join("L");

// A run of one sample is a dot: a line of no length with round ends.
function linePath(runs, x, y) {
  return runs.map((run) => `M${points(run, x, y)}${run.length === 1 ? "h0" : ""}`).join("");
}

function areaPath(runs, x, upper, lower) {
  return runs.map((run) => `M${points(run, x, upper)}L${points([...run].reverse(), x, lower)}Z`).join("");
}

// The index of the sample that is nearest to a time.
function nearest(samples, time) {
  const next = samples.findIndex((sample) => sample.at >= time);
  if (next <= 0) return next === 0 ? 0 : samples.length - 1;
  return samples[next].at - time < time - samples[next - 1].at ? next : next - 1;
}

// The values of each series as the upper and lower edges of its area.
function edgesOf(series, samples, stacked) {
  const ground = samples.map(() => 0);
  let below = ground;
  return series.map(({ value, optional }) => {
    const lower = stacked ? below : ground;
    const upper = samples.map((sample, index) => {
      const own = value(sample) ?? (optional ? 0 : NaN);
      return Number.isFinite(own) ? own + lower[index] : NaN;
    });
    below = upper;
    return { upper, lower };
  });
}

// A chart of `series` [{name, colour: 1..5, value(sample), optional}] over samples with a member `at`, oldest first. An
// optional series, whose missing values are 0, is shown if any sample has it.
//
// `format` makes text of a value; `base` 1024 is for bytes. The scale is at least `minimum` high; `log` is a logarithmic one
// around it. `stacked` series are areas on top of each other; the area of a single series is filled. Charts with the same
// `group`, a Set, show the same chosen time. The result has `show(samples)`.
export function chart(title, series, format, { base = 10, minimum = 0, log = false, stacked = false, group = new Set() } = {}) {
  const filled = stacked || (series.length === 1 && !log);
  // The line of the first series is above the others, where they are the same.
  const lines = series.map(({ colour }) => s("path", { class: `line c${colour}`, fill: "none", "vector-effect": "non-scaling-stroke" }));
  const areas = filled ? series.map(({ colour }) => s("path", { class: `area c${colour}` })) : [];
  const grid = [0, 0.5, 1].map((share) => {
    const y = TOP + share * (HEIGHT - TOP - BOTTOM);
    return s("line", { class: "grid-line", x1: 0, x2: WIDTH, y1: y, y2: y, "vector-effect": "non-scaling-stroke" });
  });
  const cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, x1: -1, x2: -1, "vector-effect": "non-scaling-stroke" });
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, grid, areas, [...lines].reverse(), cursor);
  const top = h("span", { class: "axis" });
  const middle = h("span", { class: "axis middle" });
  const [from, chosenTime, to] = [h("span", {}), h("b", {}), h("span", {})];
  const readings = series.map(() => h("b", {}, "–"));
  const keys = series.map(({ name, colour }, index) => h("li", {}, h("i", { class: `c${colour}` }), name, " ", readings[index]));
  const plot = h("div", { class: "plot", role: "slider", tabindex: "0", "aria-label": `${title}: time` }, svg, top, middle);
  const range = h("div", { class: "range", "aria-hidden": "true" }, from, chosenTime, to);
  const element = h("figure", { class: `chart ${stacked ? "stacked" : ""}` }, h("figcaption", {}, title), h("ul", { class: "legend" }, keys), plot, range);
  const isShown = series.map(() => true);
  let samples = [];
  let span = { from: 0, to: 0 };
  let chosen = null;

  const x = (time) => ((time - span.from) * WIDTH) / Math.max(1, span.to - span.from);

  function read() {
    const sample = samples[chosen === null ? samples.length - 1 : nearest(samples, chosen)];
    series.forEach(({ value }, index) => setText(readings[index], sample ? format(value(sample)) : "–"));
    const place = chosen === null || !sample ? -1 : x(sample.at);
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    setText(chosenTime, chosen === null || !sample ? "" : clock(sample.at));
    const texts = series.map(({ name }, index) => `${name} ${readings[index].textContent}`).filter((_, index) => isShown[index]);
    plot.setAttribute("aria-valuenow", sample?.at ?? 0);
    plot.setAttribute("aria-valuetext", sample ? `${clock(sample.at)}: ${texts.join(", ")}` : "no samples yet");
  }

  function point(time) {
    chosen = time;
    read();
  }
  group.add(point);
  const choose = (time) => {
    for (const one of group) one(time);
  };

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    choose(span.from + ((event.clientX - box.left) / box.width) * (span.to - span.from));
  });
  plot.addEventListener("pointerleave", () => choose(null));
  plot.addEventListener("blur", () => choose(null));
  plot.addEventListener("keydown", (event) => {
    if (samples.length === 0) return;
    const last = samples.length - 1;
    const now = chosen === null ? last : nearest(samples, chosen);
    const targets = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageUp: now + 12, PageDown: now - 12, Home: 0, End: last };
    if (event.key === "Escape") choose(null);
    if (!(event.key in targets)) return;
    event.preventDefault();
    choose(samples[Math.max(0, Math.min(last, targets[event.key]))].at);
  });

  function show(newSamples) {
    samples = newSamples;
    series.forEach(({ value, optional }, index) => {
      if (!optional) return;
      isShown[index] = samples.some((sample) => value(sample) !== undefined);
      for (const part of [keys[index], lines[index], areas[index]]) part?.toggleAttribute("hidden", !isShown[index]);
    });
    const latest = samples.at(-1)?.at ?? 0;
    span = { from: Math.min(samples[0]?.at ?? 0, latest - SPAN_MIN), to: latest };
    const gap = Math.max(GAP_MIN, (4 * (latest - (samples[0]?.at ?? 0))) / Math.max(1, samples.length - 1));
    const edges = edgesOf(series, samples, stacked);
    const values = edges.flatMap(({ upper }) => upper);
    const scale = log ? logarithmic(values, minimum) : linear(values, minimum, base);
    edges.forEach(({ upper, lower }, index) => {
      const isGap = (one) => samples[one].at - samples[one - 1].at > gap;
      const runs = runsOf(samples.length, (one) => Number.isFinite(upper[one]), isGap);
      const across = (one) => x(samples[one].at);
      const over = (one) => at(scale.share(upper[one]), HEIGHT);
      const under = (one) => at(scale.share(lower[one] || 0), HEIGHT);
      lines[index].setAttribute("d", linePath(runs, across, over));
      areas[index]?.setAttribute("d", areaPath(runs, across, over, under));
    });
    setText(top, format(scale.value(1)));
    setText(middle, format(scale.value(0.5)));
    setText(from, samples.length > 0 ? clock(span.from) : "");
    setText(to, samples.length > 0 ? clock(span.to) : "");
    plot.setAttribute("aria-valuemin", samples[0]?.at ?? 0);
    plot.setAttribute("aria-valuemax", latest);
    read();
  }

  show([]);
  return Object.assign(element, { show });
}

// A small line without axes, beside a figure. `show(values)` of the result replaces the values.
export function sparkline(values = [], colour = 1) {
  const [line, area] = [s("path", { class: `line c${colour}`, fill: "none", "vector-effect": "non-scaling-stroke" }), s("path", { class: `area c${colour}` })];
  const svg = append(s("svg", { class: "sparkline", viewBox: "0 0 120 28", preserveAspectRatio: "none", "aria-hidden": "true" }), area, line);
  const show = (shown) => {
    const max = Math.max(1e-9, ...shown.filter((value) => Number.isFinite(value)));
    const runs = runsOf(shown.length, (index) => Number.isFinite(shown[index]), () => false);
    const step = 120 / Math.max(1, shown.length - 1);
    const over = (index) => at(shown[index] / max, 28);
    line.setAttribute("d", linePath(runs, (index) => index * step, over));
    area.setAttribute("d", areaPath(runs, (index) => index * step, over, () => 28 - BOTTOM));
  };
  show(values);
  return Object.assign(svg, { show });
}
