// Servers between the verifying client and the gateway: a proxy, which may corrupt a block,
// and one that serves the client's own page from an origin that is not the gateway's.

import { once } from "node:events";
import { createServer, request } from "node:http";

/** Has a server listen on a free port of this machine; returns its origin and how to end it. */
export async function listen(server) {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { origin: `http://127.0.0.1:${server.address().port}`, close };
}

/** Serves files from a map of paths to bytes and content types. */
export function serveFiles(files) {
  const server = createServer((asked, answer) => {
    const [type, bytes] = files[asked.url] ?? [];
    answer.writeHead(bytes ? 200 : 404, { "content-type": type ?? "text/plain" });
    answer.end(bytes ?? "not found");
  });
  return listen(server);
}

/** Forwards requests to `origin` and counts them. Bodies of URLs that `corrupts` selects have one bit flipped. */
export async function startProxy(origin, corrupts = () => false) {
  const target = new URL(origin);
  const seen = [];
  const server = createServer((asked, answer) => {
    seen.push(asked.url);
    const headers = { ...asked.headers, host: target.host };
    const onward = { host: target.hostname, port: target.port, path: asked.url, method: asked.method, headers };
    const upstream = request(onward, (given) => {
      answer.writeHead(given.statusCode, given.headers);
      let first = given.statusCode === 200 && corrupts(asked.url);
      given.on("data", (chunk) => {
        if (first) chunk[chunk.length - 1] ^= 1;
        first = false;
        answer.write(chunk);
      });
      given.on("end", () => answer.end());
    });
    upstream.on("error", () => answer.destroy());
    asked.pipe(upstream);
  });
  return { ...(await listen(server)), seen };
}
