// Where the public listener serves content, as seen from this page.

import { get } from "./api.js";

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
