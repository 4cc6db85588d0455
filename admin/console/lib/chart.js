// Line charts of figures over time, as SVG. A chart is an image with a text for screen readers: its latest figures.

import { append, fill, h, s } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 600;
const HEIGHT = 150;
const LEFT = 0;
const TOP = 8;
const BOTTOM = 4;

// The least "round" number (1, 2, 2.5 or 5 times a power of the base) that is not below a value.
export function ceiling(value, base = 10) {
  if (!(value > 0)) return 1;
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  const steps = base === 10 ? [1, 2, 2.5, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return power * (steps.find((step) => step * power >= value * 0.999999) ?? base);
}

// The path of a series; missing values interrupt it.
export function path(values, max, width = WIDTH, height = HEIGHT) {
  const x = (index) => LEFT + (index * (width - LEFT)) / Math.max(1, values.length - 1);
  const y = (value) => TOP + (1 - Math.min(1, value / max)) * (height - TOP - BOTTOM);
  let text = "";
  let drawing = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined || Number.isNaN(value)) {
      drawing = false;
      return;
    }
    text += `${drawing ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    drawing = true;
  });
  return text;
}

// A chart of `series` [{name, colour: 1..5, value(sample)}] over samples with a member `at`.
// `format` makes text of a value; `base` 1024 is for bytes. The result has `show(samples)`.
export function chart(title, series, format, { base = 10, minimum = 0 } = {}) {
  const paths = series.map(({ colour }) => s("path", { class: `line c${colour}`, fill: "none", "vector-effect": "non-scaling-stroke" }));
  const grid = [0, 0.5, 1].map((share) => {
    const y = TOP + share * (HEIGHT - TOP - BOTTOM);
    return s("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y, "vector-effect": "non-scaling-stroke" });
  });
  const cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, x1: -1, x2: -1, "vector-effect": "non-scaling-stroke" });
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title }, grid, paths, cursor);
  const top = h("span", { class: "axis" });
  const from = h("span", {});
  const to = h("span", {});
  const readings = series.map(() => h("b", {}, "–"));
  const legend = h("ul", { class: "legend" }, series.map(({ name, colour }, index) => h("li", {}, h("i", { class: `c${colour}` }), name, " ", readings[index])));
  const plot = h("div", { class: "plot" }, svg, top);
  const element = h("figure", { class: "chart" }, h("figcaption", {}, title), legend, plot, h("div", { class: "range" }, from, to));
  let samples = [];
  let pointed = null;

  function read() {
    const sample = samples[pointed ?? samples.length - 1];
    series.forEach(({ value }, index) => fill(readings[index], sample ? format(value(sample)) : "–"));
    fill(to, sample ? clock(sample.at) : "");
    const x = pointed === null ? -1 : (pointed * WIDTH) / Math.max(1, samples.length - 1);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  }

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    pointed = Math.max(0, Math.min(samples.length - 1, Math.round(((event.clientX - box.left) / box.width) * (samples.length - 1))));
    read();
  });
  plot.addEventListener("pointerleave", () => {
    pointed = null;
    read();
  });

  function show(newSamples) {
    samples = newSamples;
    const values = series.map(({ value }) => samples.map(value));
    const highest = Math.max(minimum, ...values.flat().filter((value) => Number.isFinite(value)));
    const max = ceiling(highest, base);
    paths.forEach((line, index) => line.setAttribute("d", path(values[index], max)));
    fill(top, format(max));
    fill(from, samples.length > 0 ? clock(samples[0].at) : "");
    read();
    const latest = samples.at(-1);
    svg.setAttribute("aria-label", latest ? `${title}: ${series.map(({ name, value }) => `${name} ${format(value(latest))}`).join(", ")}` : `${title}: no samples yet`);
  }

  return Object.assign(element, { show });
}

// A small line without axes, beside a figure.
export function sparkline(values) {
  const max = Math.max(1e-9, ...values.filter((value) => Number.isFinite(value)));
  return append(s("svg", { class: "sparkline", viewBox: "0 0 120 28", preserveAspectRatio: "none", "aria-hidden": "true" }), s("path", { class: "line c1", fill: "none", d: path(values, max, 120, 28), "vector-effect": "non-scaling-stroke" }));
}
