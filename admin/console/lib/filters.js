// Filters above a list. Their state is in the URL, so that a filtered list can be linked.

import { h } from "./dom.js";
import { checkbox, field, input, select } from "./ui.js";

// A pause in typing after which the list is filtered, in milliseconds.
const PAUSE = 150;

// The filters `of` {name: {label, options?, checkbox?, placeholder?}}: a select if it has `options`, of [value, text] pairs,
// a box if it has `checkbox`, else text. `changed()` is called after a change. The result has `values`, by name, which are texts; a checked box is "yes".
export function filters({ parameters, setParameters, signal }, of, changed) {
  const values = {};
  let timer;
  const isDefault = (name) => values[name] === (of[name].options?.[0][0] ?? "");
  const set = (name, value, wait) => {
    values[name] = value;
    clearTimeout(timer);
    timer = setTimeout(() => {
      setParameters(Object.fromEntries(Object.keys(of).map((one) => [one, isDefault(one) ? "" : values[one]])));
      changed();
    }, wait);
  };
  const shown = Object.entries(of).map(([name, { label, options, checkbox: isBox, placeholder }]) => {
    const given = parameters.get(name) ?? "";
    values[name] = options && !options.some(([value]) => value === given) ? options[0][0] : given;
    if (isBox) return checkbox(label, { checked: values[name] === "yes", onchange: (event) => set(name, event.target.checked ? "yes" : "", 0) });
    if (options) return field(label, select(options, values[name], { onchange: (event) => set(name, event.target.value, 0) }));
    return field(label, input({ type: "search", value: values[name], placeholder, oninput: (event) => set(name, event.target.value.trim(), PAUSE) }));
  });
  signal.addEventListener("abort", () => clearTimeout(timer));
  return Object.assign(h("div", { class: "filters" }, shown), { values });
}

// Whether one of the texts contains the words that were typed, whatever their case.
export function matches(words, texts) {
  if (words === "") return true;
  const wanted = words.toLowerCase();
  return texts.some((text) => typeof text === "string" && text.toLowerCase().includes(wanted));
}
