// Where the gateway answers browsers.

import { get } from "./api.js";

// The URL of an address of a listener, such as "127.0.0.1:8080"; null for Unix sockets. A listener of all addresses is reached
// at the host of this page.
export function listenerUrl(address, scheme = "http") {
  if (address.startsWith("unix:")) return null;
  const [, host, port] = /^(.*):(\d+)$/.exec(address) ?? [];
  if (host === undefined) return null;
  return `${scheme}://${host === "0.0.0.0" || host === "[::]" ? location.hostname : host}:${port}`;
}

// The listeners of the gateway with their URLs. Those with TLS come after those of http.listen.
export async function listeners(node, signal) {
  const config = await get("/api/v1/config", {}, { signal });
  const plain = config.settings["http.listen"]?.value;
  const plainCount = Array.isArray(plain) ? plain.length : node.gateway_listeners.length;
  return node.gateway_listeners.map((address, index) => ({ address, url: listenerUrl(address, index < plainCount ? "http" : "https") }));
}
// Where the public listener serves content, as seen from this page.


// The origin of the gateway: the host of this page, and the port of the first public listener. Null if the listeners are not
// known, because the token lacks the scope "read" or the gateway listens on no port.
export async function gatewayOrigin(context) {
  if (!context.may("read")) return null;
  const { gateway_listeners: listeners } = await get("/api/v1/node", {}, { signal: context.signal });
  const port = listeners.map((listener) => /:(\d+)$/.exec(listener)?.[1]).find(Boolean);
  return port ? `${location.protocol}//${location.hostname}:${port}` : null;
}

// A path such as /ipfs/CID/a b.txt as part of a URL.
export const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");

// The page of the console that shows a path.
export const contentHref = (path) => `#/content?path=${encodeURIComponent(path)}`;
