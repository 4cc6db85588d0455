// Creates DOM nodes. All text becomes text nodes, so that nothing that a peer or a client chose is read as markup.

const SVG = "http://www.w3.org/2000/svg";

function create(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2).toLowerCase(), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "indeterminate") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

// Appends nodes, texts, numbers and lists of these; null, undefined and false are left out.
export function append(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : plain(String(child)));
  }
  return element;
}

// An HTML element. Attributes whose names begin with "on" are event listeners.
export function h(name, attributes, ...children) {
  return create(document.createElement(name), attributes, children);
}

// An SVG element.
export function s(name, attributes, ...children) {
  return create(document.createElementNS(SVG, name), attributes, children);
}

// Replaces what is in an element.
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, ...children);
}

// Sets the text of an element, if it differs: the layout of a figure that stays the same is not computed again.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Control characters, and those that reorder text, could make a name look like another one.
export function plain(text) {
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

let ids = 0;
// An ID that no other element of the page has, for labels.
export function uniqueId(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}
