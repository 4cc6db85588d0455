// TAR archives (POSIX.1-2001, "pax") of files whose contents are not read: an archive is a Blob of headers and of the
// files themselves, from which the browser reads what is sent, when it is sent.
//
// The same files in the same order give the same archive, so that an upload of it can go on after the page was reloaded.

const RECORD = 512;
// The largest number in a field of 11 octal digits.
const OCTAL_MAX = 8 ** 11 - 1;
const NAME_BYTES = 100;
const encoder = new TextEncoder();

const roundedUp = (bytes) => Math.ceil(bytes / RECORD) * RECORD;

// ---------------------------------------------------------------- Headers

function write(header, offset, length, text) {
  encoder.encodeInto(text, header.subarray(offset, offset + length));
}

function writeOctal(header, offset, length, number) {
  write(header, offset, length, number.toString(8).padStart(length - 1, "0"));
}

// A header in the ustar format: a record of 512 bytes. `name` is in bytes; what does not fit has a pax record before it.
function ustar(name, { size, mtime, mode, type }) {
  const header = new Uint8Array(RECORD);
  header.set(name.subarray(0, NAME_BYTES));
  writeOctal(header, 100, 8, mode);
  writeOctal(header, 108, 8, 0);
  writeOctal(header, 116, 8, 0);
  writeOctal(header, 124, 12, size > OCTAL_MAX ? 0 : size);
  writeOctal(header, 136, 12, mtime);
  // The checksum is that of the header with spaces in its place.
  write(header, 148, 8, "        ");
  write(header, 156, 1, type);
  write(header, 257, 8, "ustar\u000000");
  const sum = header.reduce((total, byte) => total + byte, 0);
  write(header, 148, 8, `${sum.toString(8).padStart(6, "0")}\u0000 `);
  return header;
}

// A record of a pax header: "LENGTH KEY=VALUE\n", where LENGTH counts its own digits.
function paxRecord(key, value) {
  const rest = encoder.encode(` ${key}=${value}\n`).length;
  let length = rest + String(rest).length;
  if (rest + String(length).length !== length) length += 1;
  return `${length} ${key}=${value}\n`;
}

const isAscii = (text) => /^[\x20-\x7e]*$/.test(text);

function paxHeader(path, bytes, { size, mtime }) {
  const records = [];
  if (bytes.length > NAME_BYTES || !isAscii(path)) records.push(paxRecord("path", path));
  if (size > OCTAL_MAX) records.push(paxRecord("size", size));
  if (records.length === 0) return [];
  const text = encoder.encode(records.join(""));
  const padded = new Uint8Array(roundedUp(text.length));
  padded.set(text);
  return [ustar(encoder.encode("pax"), { size: text.length, mtime, mode: 0o644, type: "x" }), padded];
}

// The headers of an entry {path, file} or {path, directory: true}. A path has slashes between names and none at its ends.
function headers({ path, file, directory }) {
  const name = directory ? `${path}/` : path;
  const bytes = encoder.encode(name);
  const size = directory ? 0 : file.size;
  const mtime = Math.min(Math.max(0, Math.floor((file?.lastModified ?? 0) / 1000)), OCTAL_MAX);
  const attributes = { size, mtime, mode: directory ? 0o755 : 0o644, type: directory ? "5" : "0" };
  return [...paxHeader(name, bytes, attributes), ustar(bytes, attributes)];
}

// ---------------------------------------------------------------- Archives

// Sorted by path, as code points, so that the order is that of neither the file system nor the browser's language.
const inOrder = (entries) => [...entries].sort((one, other) => (one.path < other.path ? -1 : Number(one.path > other.path)));

// An archive of entries {path, file} and {path, directory: true}.
export function tar(entries) {
  const parts = [];
  for (const entry of inOrder(entries)) {
    parts.push(...headers(entry));
    if (entry.directory) continue;
    parts.push(entry.file);
    const padding = roundedUp(entry.file.size) - entry.file.size;
    if (padding > 0) parts.push(new Uint8Array(padding));
  }
  // Two records of zeroes end an archive.
  parts.push(new Uint8Array(2 * RECORD));
  return new Blob(parts, { type: "application/x-tar" });
}

// The length of that archive in bytes, without making it.
export function tarLength(entries) {
  const lengthOf = (entry) => headers(entry).reduce((sum, part) => sum + part.length, 0) + (entry.directory ? 0 : roundedUp(entry.file.size));
  return entries.reduce((sum, entry) => sum + lengthOf(entry), 2 * RECORD);
}
