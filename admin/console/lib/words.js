// Values of the API in words, for all pages.

// The stages of the node, with the tones of badges.
export const STAGES = { serving: ["Serving", "ok"], draining: ["Draining", "warning"], starting: ["Starting", "info"] };

export const TRANSPORTS = { tcp: "TCP", quic: "QUIC", websocket: "WebSocket", circuit: "Circuit" };

// Where the value of a name comes from.
export const NAME_SOURCES = {
  list: "from the settings (names.dnslink_map)",
  published: "published by this node",
  network: "from the network",
  dns: "from DNS",
  unknown: "not in the cache",
};

// The tone of an HTTP status.
export function toneOf(status) {
  if (status >= 500) return "error";
  return status >= 400 ? "warning" : "ok";
}
