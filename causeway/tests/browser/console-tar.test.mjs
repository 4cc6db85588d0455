// The TAR archives of the console (admin/console/lib/tar.js), read by GNU tar.
//
//   node --test causeway/tests/browser/console-tar.test.mjs

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtemp, readFile, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { consoleModule } from "./support/console.mjs";

const { tar, tarLength } = await consoleModule("tar.js");
const dir = await mkdtemp(join(tmpdir(), "causeway-tar-"));
after(() => rm(dir, { recursive: true, force: true }));

const MODIFIED = 1_700_000_000_000;
const file = (content, lastModified = MODIFIED) => Object.assign(new Blob([content]), { lastModified });

function gnuTar(args, input) {
  const done = spawnSync("tar", args, { input, env: { ...process.env, LC_ALL: "C.UTF-8", TZ: "UTC" }, maxBuffer: 64 << 20 });
  return { status: done.status, stdout: done.stdout.toString(), stderr: done.stderr.toString() };
}

/** Extracts an archive with GNU tar, and returns all files by their paths; a folder's content is null. */
async function extracted(archive) {
  const out = await mkdtemp(join(dir, "out-"));
  const done = gnuTar(["-x", "-C", out], Buffer.from(await archive.arrayBuffer()));
  assert.deepEqual([done.status, done.stderr], [0, ""], "GNU tar accepts the archive without a warning");
  const found = new Map();
  for (const path of await readdir(out, { recursive: true })) {
    const about = await stat(join(out, path));
    found.set(path, about.isDirectory() ? null : { content: await readFile(join(out, path)), about });
  }
  return found;
}

const filesOf = (found) => [...found].filter(([, value]) => value !== null).map(([path]) => path).sort();

test("GNU tar extracts every file with its content, mode and time", async () => {
  const table = [
    "site/index.html",
    "site/a b.txt",
    `site/${"n".repeat(94)}`,
    `site/${"n".repeat(95)}`,
    `site/${"n".repeat(96)}`,
    `site/${"d".repeat(120)}/${"e".repeat(120)}/${"f".repeat(200)}`,
    "site/grüße/日本語/🏔.txt",
    "site/tab\tand\nline",
    "site/100%=\\'\".txt",
  ];
  const entries = table.map((path, index) => ({ path, file: file(`content ${index} of ${path}`) }));
  const found = await extracted(tar(entries));
  assert.deepEqual(filesOf(found), [...table].sort());
  for (const [index, path] of table.entries()) {
    const { content, about } = found.get(path);
    assert.equal(content.toString(), `content ${index} of ${path}`);
    assert.deepEqual([about.mode & 0o777, about.mtimeMs], [0o644, MODIFIED], path);
  }
});

test("contents of any length end at a record", async () => {
  const lengths = [0, 1, 511, 512, 513, 1023, 1024, 100_000];
  const entries = lengths.map((length) => ({ path: `f/${length}`, file: file(Buffer.alloc(length, 7)) }));
  const found = await extracted(tar(entries));
  for (const length of lengths) assert.deepEqual(found.get(`f/${length}`).content, Buffer.alloc(length, 7));
});

test("an empty folder is kept", async () => {
  const long = `top/${"x".repeat(150)}`;
  const entries = [{ path: "top/empty", directory: true }, { path: long, directory: true }, { path: "top/file", file: file("x") }];
  const found = await extracted(tar(entries));
  assert.deepEqual([...found.keys()].sort(), ["top", "top/empty", "top/file", long].sort());
});

test("the length is known beforehand, and the order of the files does not matter", async () => {
  const names = Array.from({ length: 200 }, (_, index) => `t/${String.fromCodePoint(97 + (index % 26), 0x100 + index)}${"l".repeat(index)}`);
  const entries = names.map((path, index) => ({ path, file: file("y".repeat(index * 17)) }));
  const archive = tar(entries);
  assert.equal(tarLength(entries), archive.size);
  const other = tar([...entries].reverse());
  assert.ok(Buffer.from(await archive.arrayBuffer()).equals(Buffer.from(await other.arrayBuffer())));
  assert.deepEqual(filesOf(await extracted(archive)), [...names].sort());
});

test("times before 1970 and without a value are 1970", async () => {
  const entries = [{ path: "old", file: file("x", -5000) }, { path: "none", file: new Blob(["x"]) }];
  const found = await extracted(tar(entries));
  assert.deepEqual([found.get("old").about.mtimeMs, found.get("none").about.mtimeMs], [0, 0]);
});

test("a file of more than 8 GiB has its length in a pax record", async () => {
  // Only the headers matter: a file of this size without content.
  const length = 8 * 2 ** 30 + 1;
  const entries = [{ path: "large", file: { size: length, lastModified: MODIFIED } }];
  assert.equal(tarLength(entries), 3 * 512 + length + 511 + 1024);
  // GNU tar lists the file before it finds that the content is missing.
  const { stdout } = gnuTar(["-tv"], Buffer.from(await tar(entries).slice(0, 3 * 512).arrayBuffer()));
  assert.match(stdout, new RegExp(` ${length} .* large\n`));
});
