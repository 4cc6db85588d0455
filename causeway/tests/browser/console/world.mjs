// What the tests of the console need: gateways with content, pins and peers, and traffic.

import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer as createTcpServer, connect } from "node:net";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** Signs of Base64 and of URLs, which a link has to encode. */
export const TOKEN = "console+tests/of&the=token";
export const PINS = 10_000;
const BATCHES = 10;
export const batchName = (index) => `batch ${String(index).padStart(2, "0")}`;

export const CAR = { "content-type": "application/vnd.ipld.car" };

/** Markup, and characters that reorder text, as a client or a peer may choose them. */
export const MARKUP = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>";
export const REORDERED = "\u202egnp.exe";

/** Imports a module of a package, since node_modules is not above these files. */
export const packaged = (modules, path) => import(pathToFileURL(join(modules, "node_modules", path)));

/** Makes CIDs and archives of raw blocks. */
export async function archives(modules) {
  const { CID } = await packaged(modules, "multiformats/dist/src/cid.js");
  const { sha256 } = await packaged(modules, "multiformats/dist/src/hashes/sha2.js");
  const car = await packaged(modules, "@ipld/car/src/buffer-writer.js");
  const RAW = 0x55;
  const block = async (bytes) => ({ cid: CID.createV1(RAW, await sha256.digest(bytes)), bytes });
  return {
    /** The CID of a block that is stored nowhere. */
    unknown: async () => (await block(randomBytes(32))).cid.toString(),
    /** An archive with all blocks as roots. */
    async of(texts) {
      const blocks = await Promise.all(texts.map((text) => block(Buffer.from(text))));
      const roots = blocks.map(({ cid }) => cid);
      const length = blocks.reduce((sum, each) => sum + car.blockLength(each), car.headerLength({ roots }));
      const writer = car.createWriter(new ArrayBuffer(length), { roots });
      for (const each of blocks) writer.write(each);
      return { bytes: Buffer.from(writer.close()), cids: roots.map(String) };
    },
  };
}

/** Pins many blocks of one byte or a few, in batches with names. Returns the CIDs of each batch. */
export async function pinMany(node, maker) {
  const each = PINS / BATCHES;
  const batches = [];
  for (let index = 0; index < BATCHES; index += 1) {
    const { bytes, cids } = await maker.of([...Array(each).keys()].map((number) => `pin ${index * each + number}`));
    const name = encodeURIComponent(batchName(index));
    await node.api("POST", `/api/v1/store/import?name=${name}`, { body: bytes, headers: CAR });
    batches.push(cids);
  }
  return batches;
}

/** Stores the blocks of an archive without pins, each of which would be synchronised with the disk. */
export async function storeBlocks(node, bytes) {
  const body = new FormData();
  body.append("file", new Blob([bytes]));
  const response = await node.adminRequest("POST", "/api/v0/dag/import?pin-roots=false", { body });
  const answer = await response.text();
  if (!response.ok) throw new Error(`dag/import: ${response.status} ${answer}`);
}

/** Uploads files by their paths below one directory; returns its CID. */
export async function uploadFolder(node, folder, files) {
  const form = new FormData();
  for (const [path, content] of Object.entries(files)) form.append("file", new Blob([content]), `${folder}/${path}`);
  const view = await node.api("POST", `/api/v1/upload?pin-name=${encodeURIComponent(folder)}`, { body: form });
  return view.roots[0].cid;
}

/** Requests to the public listener: `workers` at a time, until `stop` is called. Returns the counts by status. */
export function traffic(paths, { workers = 2, pause = 20 } = {}) {
  const counts = {};
  let running = true;
  const work = async (first) => {
    for (let at = first; running; at += 1) {
      const response = await fetch(paths[at % paths.length]);
      await response.arrayBuffer();
      counts[response.status] = (counts[response.status] ?? 0) + 1;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  };
  const all = [...Array(workers).keys()].map(work);
  return {
    counts,
    async stop() {
      running = false;
      await Promise.all(all);
      return counts;
    },
  };
}

/**
 * Connections to a server that can be broken: a TCP proxy. They break once `breaksAfter` bytes were sent to the server;
 * afterwards new ones are refused, if `thenRefuses`, until `refuse(false)`.
 */
export async function breakableProxy(origin) {
  const { hostname, port } = new URL(origin);
  const sockets = new Set();
  const proxy = { sent: 0, breaksAfter: Infinity, thenRefuses: false, broken: 0 };
  let refuses = false;
  const breakAll = () => {
    for (const socket of sockets) socket.destroy();
  };
  const server = createTcpServer((client) => {
    if (refuses) {
      client.destroy();
      return;
    }
    const upstream = connect(Number(port), hostname);
    const end = () => {
      client.destroy();
      upstream.destroy();
    };
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", end);
      socket.on("close", () => {
        sockets.delete(socket);
        end();
      });
    }
    client.on("data", (chunk) => {
      proxy.sent += chunk.length;
      if (proxy.sent > proxy.breaksAfter) {
        proxy.breaksAfter = Infinity;
        proxy.broken += 1;
        refuses = proxy.thenRefuses;
        breakAll();
        return;
      }
      if (!upstream.write(chunk)) {
        client.pause();
        upstream.once("drain", () => client.resume());
      }
    });
    upstream.pipe(client);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  proxy.origin = `http://127.0.0.1:${server.address().port}`;
  proxy.refuse = (now) => {
    refuses = now;
    if (refuses) breakAll();
  };
  proxy.close = () => {
    breakAll();
    return new Promise((resolve) => server.close(resolve));
  };
  return proxy;
}

// js-libp2p uses it, and Node.js has it from version 22 on.
Promise.withResolvers ??= function withResolvers() {
  const parts = {};
  parts.promise = new this((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

/** A peer of another implementation, whose agent is markup. */
async function strangePeer(modules, node) {
  const [{ createLibp2p }, { tcp }, { noise }, { yamux }, { identify }, { multiaddr }] = await Promise.all([
    packaged(modules, "libp2p/dist/src/index.js"),
    packaged(modules, "@libp2p/tcp/dist/src/index.js"),
    packaged(modules, "@libp2p/noise/dist/src/index.js"),
    packaged(modules, "@libp2p/yamux/dist/src/index.js"),
    packaged(modules, "@libp2p/identify/dist/src/index.js"),
    packaged(modules, "@multiformats/multiaddr/dist/src/index.js"),
  ]);
  const peer = await createLibp2p({
    nodeInfo: { userAgent: MARKUP },
    addresses: { listen: ["/ip4/127.0.0.1/tcp/0"] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: { identify: identify() },
  });
  const address = multiaddr(node.p2p);
  return {
    id: peer.peerId.toString(),
    /**
     * Connects, unless it is connected, since either side may close a connection that it does not use. Its time limits
     * of a few seconds can be too short for a busy machine.
     */
    connect: () => peer.dial(address).catch(() => peer.dial(address)).catch(() => peer.dial(address)),
    stop: () => peer.stop(),
  };
}

/** Fills the gateways: content to hit and to miss, names that provoke, pins, tokens, a denylist rule, peers. */
export async function makeWorld({ gateway, other, many, maker, modules }) {
  const site = await uploadFolder(gateway, "site", {
    "index.html": "<!doctype html><title>A site</title><h1>A site</h1>",
    "attacker.html": "<!doctype html><title>Attacker</title><p>A page of another origin.</p>",
    "big.bin": randomBytes(256 * 1024),
    [`${MARKUP.replaceAll("/", "")}.txt`]: "markup",
  });
  // What only the other gateway has is a miss, which the network answers.
  const remote = await maker.of([...Array(300).keys()].map((number) => `only elsewhere ${number}`));
  await storeBlocks(other, remote.bytes);
  await gateway.api("POST", "/api/v1/peers/connect", { json: { address: other.p2p } });
  const peer = await strangePeer(modules, gateway);
  await peer.connect();
  const batches = await pinMany(many, maker);
  const own = await maker.of([...Array(12).keys()].map((number) => `photo ${number}`));
  await gateway.api("POST", "/api/v1/store/import?name=photos", { body: own.bytes, headers: CAR });
  for (const name of [MARKUP, `photo ${REORDERED}`]) {
    await gateway.api("POST", "/psa/pins", { json: { cid: own.cids[0], name } });
  }
  await gateway.api("POST", "/api/v1/tokens", { json: { name: MARKUP.slice(0, 64), scopes: ["read"] } });
  const path = (cid, rest = "") => `${gateway.origin}/ipfs/${cid}${rest}`;
  // What is fetched once is no miss any more: each run of traffic has misses of its own.
  const pathsOf = (index) => [
    ...[...Array(6).keys()].map(() => path(site, "/big.bin")),
    path(site, "/index.html"),
    ...remote.cids.slice(50 * index, 50 * index + 50).map((cid) => path(cid)),
    path(site, `/nothing/${encodeURIComponent(MARKUP)}`),
  ];
  return { content: { site, attacker: `${site}/attacker.html`, remote: remote.cids, batches, pathsOf }, peer };
}
