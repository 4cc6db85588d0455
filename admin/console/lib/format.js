// Figures as text for people. Missing figures are a dash.

const DASH = "–";
// With a space at which lines do not break.
const PERCENT = "\u00a0%";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

function threeDigits(value) {
  if (value >= 100) return value.toFixed(0);
  if (value >= 10) return value.toFixed(1);
  return value.toFixed(2);
}

export function bytes(value) {
  if (missing(value)) return DASH;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${Math.round(value)} B` : `${threeDigits(value)} ${UNITS[unit]}`;
}

export const byteRate = (value) => (missing(value) ? DASH : `${bytes(value)}/s`);

// A count, with its digits in groups.
export const count = (value) => (missing(value) ? DASH : Math.round(value).toLocaleString("en-GB"));

// Requests, blocks or the like in a second.
export function rate(value) {
  if (missing(value)) return DASH;
  if (value >= 10) return count(value);
  if (value > 0 && value < 0.05) return "<0.1";
  return value === 0 ? "0" : value.toFixed(1);
}

// The share of a whole in per cent.
export function share(part, whole) {
  if (missing(part) || missing(whole) || whole <= 0) return DASH;
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.05) return `<0.1${PERCENT}`;
  if (percent > 99.95 && part < whole) return `99.9${PERCENT}`;
  return `${percent >= 10 || percent === 0 ? percent.toFixed(0) : percent.toFixed(1)}${PERCENT}`;
}

// A duration in seconds.
export function duration(seconds) {
  if (missing(seconds)) return DASH;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${threeDigits(seconds * 1000)} ms`;
  if (seconds < 60) return `${threeDigits(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

// A duration of which fractions of a second say nothing, such as an age.
export const wholeDuration = (seconds) => (missing(seconds) || seconds >= 60 ? duration(seconds) : `${Math.max(0, Math.floor(seconds))} s`);

// Words with a capital letter first.
export const capitalised = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

// Words of the gateway as a sentence. One that begins with an identifier stays as it is.
export const sentence = (text) => `${text.replace(/^[a-z]{1,12}(?= )/, (word) => word[0].toUpperCase() + word.slice(1))}${/[.!?]$/.test(text) ? "" : "."}`;

const DATE = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat("sv-SE", { timeStyle: "medium" });

// A time in seconds since the Unix epoch, in the browser's time zone.
export const time = (at) => (missing(at) ? DASH : DATE.format(new Date(at * 1000)));
export const clock = (at) => (missing(at) ? DASH : CLOCK.format(new Date(at * 1000)));

// A duration in seconds as people say it, in one unit.
export function span(seconds) {
  if (missing(seconds)) return DASH;
  if (seconds < 59.5) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3570) return `${Math.round(seconds / 60)} min`;
  return seconds < 48 * 3600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}

// How long ago a time was.
export const ago = (at) => (missing(at) ? DASH : `${span(Date.now() / 1000 - at)} ago`);

// When a time will be.
export function until(at) {
  if (missing(at)) return DASH;
  const seconds = at - Date.now() / 1000;
  return seconds < 1 ? "now" : `in ${span(seconds)}`;
}

// A long identifier (CID, peer ID) with its middle left out.
export function shortened(text, ends = 6) {
  if (missing(text)) return DASH;
  return text.length <= 2 * ends + 3 ? text : `${text.slice(0, ends)}…${text.slice(-ends)}`;
}

// "1 pin", "2 pins".
export const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

const FACTORS = { "": 1, b: 1, k: 1e3, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 };

// The bytes of a size that was typed, such as "10 GiB" or "500kB"; NaN if it is none.
export function parseBytes(text) {
  const [, number, unit] = /^\s*([\d.]+)\s*([a-z]*)\s*$/i.exec(text) ?? [];
  return number === undefined ? Number.NaN : Math.round(Number(number) * (FACTORS[unit.toLowerCase()] ?? Number.NaN));
}
