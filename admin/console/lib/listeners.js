// Where the gateway answers browsers.

import { get } from "./api.js";

// The URL of an address of a listener, such as "127.0.0.1:8080"; null for Unix sockets. A listener of all addresses is reached
// at the host of this page.
function listenerUrl(address, scheme) {
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

// The node, and the URL at which browsers reach its gateway. Both are null for a token without the scope "read"; the URL is, if
// the gateway listens on no port.
export async function gatewayOf({ may, signal }) {
  if (!may("read")) return { node: null, url: null };
  const node = await get("/api/v1/node", {}, { signal });
  return { node, url: (await listeners(node, signal)).find(({ url }) => url !== null)?.url ?? null };
}
