// Content by its names: what an operator types (a CID, a path, a URL or a name), and links to the Content page.

// A multihash of base58 with the length of SHA2-256 (CIDv0), and texts of CIDv1 in base32 and others.
const CID_V0 = /^Qm[1-9A-HJ-NP-Za-km-z]{44}$/;
const CID_V1 = /^(b[a-z2-7]{20,}|B[A-Z2-7]{20,}|z[1-9A-HJ-NP-Za-km-z]{20,}|f[0-9a-f]{20,}|k[0-9a-z]{20,})$/;
// Keys of IPNS: CIDs with the codec libp2p-key, and peer IDs.
const KEY = /^(k51qzi5|k2k4r8|kzwfwjn5ji4|bafz|12D3Koo|16Uiu2)/;

const isCid = (text) => CID_V0.test(text) || CID_V1.test(text);

// Whether the first part of a path without /ipfs/ or /ipns/ is a name: an IPNS key or a domain.
export const isName = (root) => KEY.test(root) || (!isCid(root) && root.includes("."));

// A path such as /ipfs/CID/a b.txt as part of a URL.
export const pathInUrl = (path) => path.split("/").map(encodeURIComponent).join("/");

// The console's page of what a client requests: a CID, a path as in URLs, or a URL.
export const requestHref = (request) => `#/content?path=${encodeURIComponent(request)}`;

// The console's page of a path whose names are as they are, such as /ipfs/CID/a b.txt.
export const contentHref = (path) => requestHref(pathInUrl(path));

// The CID that was typed, alone or in a path or a URL of it.
export function cidOf(text) {
  const typed = text.trim();
  const [, cid, rest] = /(?:\/ipfs\/|^ipfs:\/\/)([^/?#]+)\/*([^?#]*)/.exec(typed) ?? [null, typed, ""];
  if (rest !== "") throw new Error(`Enter a CID: this path leads to content below ${cid}. The Content page shows the CID of a path.`);
  return cid;
}

// Characters that are no part of a URL, percent-encoded.
const escaped = (text) => text.toWellFormed().replace(/[^\x21-\x7e]+/gu, encodeURIComponent);

// The parameters of /api/v1/explain for a text: {path} or {url}; null for an empty one. What is no CID, path, URL or name
// becomes a path all the same: the gateway says what is wrong with it.
export function requestOf(text) {
  const typed = escaped(text.trim());
  if (typed === "") return null;
  const [, scheme, rest] = /^(\w+):\/\/(.*)$/.exec(typed) ?? [];
  if (scheme && /^ip[fn]s$/i.test(scheme)) return { path: `/${scheme.toLowerCase()}/${rest}` };
  if (scheme) return { url: typed.replace(/#.*$/, "") };
  if (typed.startsWith("/")) return { path: typed };
  const [root] = typed.split(/[/?#]/);
  return { path: `/${isName(root) ? "ipns" : "ipfs"}/${typed}` };
}
