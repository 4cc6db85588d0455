#!/usr/bin/env node
// Serves the console from its sources, so that a change is seen without building the binary:
//
//   scripts/console-dev.mjs [ADMIN-URL] [PORT]     http://127.0.0.1:8081 and 8090 by default
//
// Everything else is passed on to the admin listener of a running gateway. Listens on loopback only.

import { createReadStream } from "node:fs";
import { createServer, request } from "node:http";
import { pipeline } from "node:stream";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const sources = join(dirname(fileURLToPath(import.meta.url)), "../admin/console");
const admin = new URL(process.argv[2] ?? "http://127.0.0.1:8081");
const port = Number(process.argv[3] ?? 8090);
const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml" };
// As in admin/src/console.rs, except that nothing is cached.
const HEADERS = {
  "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
  "x-frame-options": "DENY",
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  "cache-control": "no-store",
};

function asset(path, response) {
  const file = normalize(join(sources, path === "/" ? "index.html" : path.slice("/console/".length)));
  if (!file.startsWith(sources)) return response.writeHead(404, HEADERS).end();
  const stream = createReadStream(file);
  stream.on("error", () => response.writeHead(404, HEADERS).end());
  stream.once("open", () => {
    response.writeHead(200, { "content-type": `${TYPES[extname(file)] ?? "application/octet-stream"}; charset=utf-8`, ...HEADERS });
    stream.pipe(response);
  });
}

createServer((incoming, response) => {
  const { pathname } = new URL(incoming.url, "http://localhost");
  if (pathname === "/" || pathname.startsWith("/console/")) return asset(pathname, response);
  const passed = request({ host: admin.hostname, port: admin.port, path: incoming.url, method: incoming.method, headers: incoming.headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    // A gateway that is killed ends the response as well.
    pipeline(answer, response, () => {});
  });
  passed.on("error", () => response.writeHead(502).end());
  response.on("close", () => passed.destroy());
  incoming.pipe(passed);
}).listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/`));
