// The parts that pages are made of. Each returns an element.

import { append, fill, h, plain, s, setText, uniqueId } from "./dom.js";
import { bytes, count, shortened } from "./format.js";
import { toneOf } from "./words.js";

// ---------------------------------------------------------------- Text

// Paths of icons with strokes in a square of 24.
const ICONS = {
  overview: "M4 19V9m6 10V5m6 14v-8m4 8H3",
  content: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14m5 12 4 4",
  pins: "M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v6",
  uploads: "M12 16V5m-5 5 5-5 5 5M5 20h14",
  peers: "M12 5a2 2 0 1 0 0 .1M5 17a2 2 0 1 0 0 .1M19 17a2 2 0 1 0 0 .1M11 7l-5 8m7-8 5 8M7 17h10",
  requests: "M4 8h13m-4-4 4 4-4 4M20 16H7m4-4-4 4 4 4",
  denylists: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16M6.5 6.5l11 11",
  names: "M4 7v5l8 8 7-7-8-8H5a1 1 0 0 0-1 2zM8 9v.1",
  tokens: "M14 10a4 4 0 1 0-1 3l3 3h3v-3h2v-3z",
  audit: "M6 4h12v16H6zM9 9h6M9 13h6M9 17h3",
  settings: "M4 7h9m5 0h2M4 17h2m5 0h9M15 5v4M8 15v4",
  store: "M4 7c0-4 16-4 16 0v10c0 4-16 4-16 0zm0 0c0 4 16 4 16 0M4 12c0 4 16 4 16 0",
  copy: "M9 9h10v10H9zM5 15V5h10",
  open: "M9 6l6 6-6 6",
  close: "M6 6l12 12M18 6L6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  out: "M10 5H5v14h5M14 8l4 4-4 4m4-4H9",
  ok: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M8 12.5l2.7 2.7L16 9.5",
  alert: "M12 4 2.8 19.5h18.4zM12 10v4.2m0 2.6v.1",
  info: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 11v5.5m0-9v.1",
  search: "M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12m4.5 10.5L20 20",
};

// An icon beside text that says the same; it is hidden from screen readers.
export function icon(name) {
  const path = s("path", { d: ICONS[name], fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-linecap": "round", "stroke-linejoin": "round" });
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, path);
}

// A word with a colour: `tone` is ok, info, warning, error or quiet.
export const badge = (text, tone = "quiet") => h("span", { class: `badge ${tone}` }, text);

// An HTTP status with its colour.
export const statusBadge = (status) => badge(String(status), toneOf(status));

// A CID, peer ID or the like: shortened, whole as a tooltip, with a button that copies it.
export function identifier(text, { href, ends = 8 } = {}) {
  if (!text) return h("span", { class: "muted" }, "–");
  const shown = href ? h("a", { href, title: text }, shortened(text, ends)) : h("span", { title: text }, shortened(text, ends));
  return h("span", { class: "identifier" }, shown, copyButton(text));
}

// `name` is what a screen reader says in the place of a text that is long or secret.
export function copyButton(text, name = text) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.");
    } catch {
      toast("The browser does not allow copying here.", "error");
    }
  };
  return h("button", { type: "button", class: "bare", title: "Copy", "aria-label": `Copy ${name}`, onclick: copy }, icon("copy"));
}

// What is shown in the place of an empty list.
export const emptyState = (text, advice) => h("div", { class: "empty" }, h("p", {}, text), advice ? h("p", { class: "muted" }, advice) : null);

// An error, said where it happened.
export const errorNotice = (error) => h("p", { class: "notice error", role: "alert" }, error.message);

// A place for the error of a request that is repeated, with `show(error)`; null takes it away. The same error is said once.
export function errorPlace() {
  const element = h("div", {});
  let text = null;
  const show = (error) => {
    const message = error?.message ?? null;
    if (message === text) return;
    text = message;
    fill(element, error ? errorNotice(error) : null);
  };
  return Object.assign(element, { show });
}

// ---------------------------------------------------------------- Structure

// The heading of a page with its actions.
export function pageHead(title, about, ...actions) {
  const heading = h("div", {}, h("h1", { tabindex: "-1" }, title), about ? h("p", { class: "muted" }, about) : null);
  return h("header", { class: "page-head" }, heading, h("div", { class: "actions" }, actions));
}

// A titled section.
export function card(title, ...content) {
  const id = uniqueId("card");
  return h("section", { class: "card", "aria-labelledby": title ? id : undefined }, title ? h("h2", { id }, title) : null, content);
}

// Names and values.
export function facts(rows) {
  const shown = rows.filter((row) => row).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
  return h("dl", { class: "facts" }, shown);
}

// A figure with its name, a note, and an element below it. `href` leads to more about it. The result has `show(value, note, tone)`.
export function tile(name, { href, below } = {}) {
  const value = h("div", { class: "value" }, "–");
  const note = h("div", { class: "note" }, "\u00a0");
  const element = h("div", { class: "tile" }, h("div", { class: "name" }, href ? h("a", { href }, name) : name), value, note, below);
  const show = (text, about = "", tone = "") => {
    setText(value, text);
    setText(note, about);
    element.className = `tile ${tone}`.trim();
  };
  return Object.assign(element, { show });
}

// A bar of how much of a budget is used; `tone` as for a badge, or c1 to c5. `show(part, whole, tone)` of the result changes it.
export function meter(part, whole, label, tone = "ok") {
  const filled = h("span", {});
  const bar = h("div", { role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, filled);
  const show = (newPart, newWhole, newTone = tone) => {
    const percent = newWhole > 0 ? Math.min(100, (100 * newPart) / newWhole) : 0;
    bar.className = `meter ${newTone}`;
    bar.setAttribute("aria-valuenow", Math.round(percent));
    filled.style.width = `${percent}%`;
  };
  show(part, whole);
  return Object.assign(bar, { show });
}

// How much of a budget in bytes is used, in figures and as a bar. `show(used, budget, note, tone)` of the result changes it; without
// a budget there is no bar.
export function budgetMeter(name, colour) {
  const text = h("span", {}, "–");
  const bar = meter(0, 1, name, colour);
  const note = h("p", { class: "about" }, "\u00a0");
  const show = (used, budget, about, tone) => {
    setText(text, budget > 0 ? `${bytes(used)} of ${bytes(budget)}` : bytes(used));
    bar.show(used, budget, tone);
    bar.hidden = !(budget > 0);
    setText(note, about);
  };
  return Object.assign(h("div", { class: "budget" }, h("div", { class: "budget-head" }, h("b", {}, name), text), bar, note), { show });
}

// Progress of work; without a share it moves to say that the work goes on.
export function progress(label, share) {
  return h("progress", { "aria-label": label, max: share === undefined ? undefined : 1, value: share });
}

// ---------------------------------------------------------------- Input

// A button. While the promise of `action` is pending it does nothing more, and an error becomes a message. It is not disabled
// then, because that would take the focus away.
export function button(text, action, { kind = "", iconName, label } = {}) {
  const element = h("button", { type: "button", class: kind, "aria-label": label }, iconName ? icon(iconName) : null, text);
  element.addEventListener("click", async () => {
    if (element.hasAttribute("aria-busy")) return;
    element.setAttribute("aria-busy", "true");
    try {
      await action(element);
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message, "error");
    } finally {
      element.removeAttribute("aria-busy");
    }
  });
  return element;
}

// A labelled input, select or textarea. `about` explains it below.
export function field(label, control, about) {
  const id = uniqueId("field");
  control.id = id;
  if (about) control.setAttribute("aria-describedby", `${id}-about`);
  return h("div", { class: "field" }, h("label", { for: id }, label), control, about ? h("p", { id: `${id}-about`, class: "about" }, about) : null);
}

export const input = (attributes) => h("input", { type: "text", autocapitalize: "off", autocomplete: "off", spellcheck: "false", ...attributes });

// A select of [value, text] pairs.
export function select(options, chosen, attributes = {}) {
  return h("select", attributes, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

export function checkbox(label, attributes = {}) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", ...attributes }), h("span", {}, label));
}

// A form whose submission runs `action(form)`; an error is shown inside it, beside the fields that caused it.
export function form(action, ...content) {
  const failed = h("div", { "aria-live": "polite" });
  const element = h("form", { novalidate: true }, content, failed);
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    const buttons = element.querySelectorAll("button");
    const focused = document.activeElement;
    fill(failed);
    for (const one of buttons) one.disabled = true;
    try {
      await action(element);
    } catch (error) {
      if (error.name !== "AbortError") fill(failed, errorNotice(error));
    } finally {
      for (const one of buttons) one.disabled = false;
      // A disabled button has lost the focus.
      if (element.contains(focused)) focused.focus();
    }
  });
  return element;
}

export const submit = (text, kind = "primary") => h("button", { type: "submit", class: kind }, text);

// ---------------------------------------------------------------- Dialogs and messages

// A modal dialog with a title. `content(close)` returns what is in it; the promise has what `close` was called with,
// or undefined if it was dismissed, or `closeDialogs` was called.
export function dialog(title, content) {
  return new Promise((resolve) => {
    const id = uniqueId("dialog");
    const element = h("dialog", { "aria-labelledby": id });
    let result;
    const close = (value) => {
      result = value;
      element.close();
    };
    const cross = h("button", { type: "button", class: "bare", "aria-label": "Close", onclick: () => close() }, icon("close"));
    append(element, h("div", { class: "dialog-head" }, h("h2", { id }, title), cross), content(close));
    element.addEventListener("close", () => {
      // It may have had a secret.
      fill(element);
      element.remove();
      resolve(result);
    });
    document.body.append(element);
    element.showModal();
  });
}

// Closes what is open: another page, or the form for signing in, is shown, to which the dialogs do not belong.
export function closeDialogs() {
  for (const element of document.querySelectorAll("dialog[open]")) element.close();
}

// Takes away the messages of a session that ended.
export const clearToasts = () => document.getElementById("toasts")?.replaceChildren();

// Asks before something that cannot be undone. The promise is true if the answer was yes.
export async function confirm(title, text, yes, kind = "danger") {
  const answer = await dialog(title, (close) => [
    h("p", {}, text),
    h("div", { class: "actions" },
      h("button", { type: "button", autofocus: true, onclick: () => close(false) }, "Cancel"),
      h("button", { type: "button", class: kind, onclick: () => close(true) }, yes)),
  ]);
  return answer === true;
}

// A short message at the edge of the page. Errors stay until they are dismissed.
export function toast(text, tone = "ok") {
  let region = document.getElementById("toasts");
  if (!region) {
    region = h("div", { id: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(region);
  }
  const message = h("div", { class: `toast ${tone}` }, h("span", {}, text));
  const dismiss = () => message.remove();
  append(message, h("button", { type: "button", class: "bare", "aria-label": "Dismiss", onclick: dismiss }, icon("close")));
  region.append(message);
  if (tone !== "error") setTimeout(dismiss, 5000);
  while (region.children.length > 4) region.firstChild.remove();
}

// ---------------------------------------------------------------- Tables

// A table that scrolls sideways on narrow screens.
//
// `columns` are {title, cell(row), sort(row)?, id?, numeric?, hide?: "narrow", width?}; a column with `sort` can be sorted by. With
// widths, columns keep their places on wide screens whatever is in them. `caption` names the table for screen readers. The result
// has `show(rows, empty)`, which keeps the rows that are there by `key(row)`, so that the focus and the selection stay while
// figures run.
//
// `order` is the order at first as text for the URL: the `id` of a column, after "-" if descending; `onOrder(text)` is called
// when it changes. At most `limit` rows are in the page, until more are asked for. With `details(row)`, each row has a button
// that shows what this returns below the row.
export function table(caption, columns, options = {}) {
  const { key = (row, index) => index, empty = "Nothing here.", sorted, order: orderText, onOrder, onRow, limit = Infinity, details } = options;
  let order = sorted ?? orderFrom(orderText);
  let rows = [];
  let rowsMax = limit;
  const opened = new Set();
  const body = h("tbody", {});
  const shown = new Map();
  const heads = columns.map((column, index) => head(column, index));
  const none = h("p", { class: "empty muted", hidden: true }, empty);
  // It can be scrolled by keys.
  const wrap = h("div", { class: "table-wrap", tabindex: "0", role: "group", "aria-label": caption },
    h("table", { class: columns.some(({ width }) => width) ? "steady" : undefined }, h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, details ? h("th", { scope: "col", class: "toggle" }, h("span", { class: "hidden" }, "Details")) : null, heads)), body));
  const amount = h("span", { class: "muted" });
  const more = h("button", { type: "button", class: "small", onclick: showMore }, "Show more");
  const pager = h("div", { class: "pager", hidden: true }, amount, more);
  const element = h("div", { class: "table" }, wrap, none, pager);

  function orderFrom(text) {
    const column = text ? columns.findIndex(({ id }) => id === text.replace(/^-/, "")) : -1;
    return { column: column < 0 ? null : column, descending: Boolean(text?.startsWith("-")) };
  }

  function head(column, index) {
    const cell = h("th", { scope: "col", class: classes(column) });
    if (column.width) cell.style.width = column.width;
    if (!column.sort) return append(cell, column.title);
    const sortBy = () => {
      order = { column: index, descending: order.column === index ? !order.descending : Boolean(column.numeric) };
      onOrder?.(`${order.descending ? "-" : ""}${column.id}`);
      show(rows);
    };
    return append(cell, h("button", { type: "button", class: "sort", onclick: sortBy }, column.title));
  }

  function classes(column) {
    return [column.numeric ? "numeric" : "", column.hide === "narrow" ? "wide-only" : ""].join(" ").trim() || undefined;
  }

  function inOrder() {
    const by = columns[order.column]?.sort;
    if (!by) return rows;
    const compare = (left, right) => {
      const [a, b] = [by(left), by(right)];
      if (a === b) return 0;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      const less = typeof a === "string" ? a.localeCompare(b) < 0 : a < b;
      return less !== order.descending ? -1 : 1;
    };
    return [...rows].sort(compare);
  }

  // What has the focus, or the beginning of a selection, is left as it is. The selection is read once, since the browser
  // lays out the page for it.
  let inUse = [];
  function findInUse() {
    const selection = document.getSelection();
    inUse = [document.activeElement, selection.isCollapsed ? null : selection.anchorNode].filter((one) => one && body.contains(one));
  }

  function write(place, content) {
    if (typeof content === "string") setText(place, plain(content));
    else if (!inUse.some((one) => place.contains(one))) fill(place, content);
  }

  function line(row, id) {
    const parts = shown.get(id) ?? create(id);
    shown.set(id, parts);
    parts.row = row;
    columns.forEach((column, index) => write(parts.cells[index], column.cell(row)));
    if (onRow) onRow(parts.line, row);
    if (parts.below) write(parts.below.firstChild, details(row));
    return parts;
  }

  function create(id) {
    const cells = columns.map((column) => h("td", { class: classes(column) }));
    const parts = { line: h("tr", {}), cells, below: null, row: null };
    if (!details) {
      append(parts.line, cells);
      return parts;
    }
    const belowId = uniqueId("details");
    const toggle = h("button", { type: "button", class: "bare", "aria-label": "Details", "aria-controls": belowId }, icon("open"));
    const setOpen = (open) => {
      toggle.setAttribute("aria-expanded", String(open));
      if (open) {
        opened.add(id);
        parts.below = h("tr", { id: belowId, class: "below" }, h("td", { colspan: columns.length + 1 }));
      } else {
        opened.delete(id);
        parts.below?.remove();
        parts.below = null;
      }
    };
    toggle.addEventListener("click", () => {
      setOpen(!opened.has(id));
      if (!parts.below) return;
      fill(parts.below.firstChild, details(parts.row));
      parts.line.after(parts.below);
    });
    append(parts.line, h("td", { class: "toggle" }, toggle), cells);
    setOpen(opened.has(id));
    return parts;
  }

  function showMore() {
    rowsMax += limit;
    show(rows);
    if (pager.hidden) wrap.focus();
  }

  function show(newRows, noneText = empty) {
    rows = newRows;
    findInUse();
    heads.forEach((cell, index) => {
      if (order.column === index) cell.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const kept = new Set();
    let before = null;
    const place = (one) => {
      const next = before === null ? body.firstChild : before.nextSibling;
      if (next !== one) body.insertBefore(one, next);
      before = one;
    };
    inOrder().slice(0, rowsMax).forEach((row, index) => {
      const id = key(row, index);
      const parts = line(row, id);
      kept.add(id);
      place(parts.line);
      if (parts.below) place(parts.below);
    });
    for (const [id, parts] of shown) {
      if (!kept.has(id)) {
        parts.line.remove();
        parts.below?.remove();
        opened.delete(id);
        shown.delete(id);
      }
    }
    // A row that is moved loses the focus.
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
    else if (focused && !focused.isConnected) wrap.focus({ preventScroll: true });
    if (noneText instanceof Node) fill(none, noneText);
    else setText(none, noneText);
    none.hidden = rows.length > 0;
    wrap.hidden = rows.length === 0;
    pager.hidden = rows.length <= rowsMax;
    setText(amount, `${count(rowsMax)} of ${count(rows.length)} are shown.`);
  }

  show([]);
  none.hidden = true;
  return Object.assign(element, { show });
}
