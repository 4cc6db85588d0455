// The unmodified npm client of Kubo's RPC with the admin listener. Two gateways serve all tests.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { TOKEN, packaged, start } from "./nodes.mjs";

const { create, CID } = await packaged("kubo-rpc-client/dist/src/index.js");
const [one, two] = await Promise.all([start("one"), start("two")]);
const client = (node, token = TOKEN) => create({ url: `${node.admin}/api/v0`, headers: { authorization: `Bearer ${token}` } });
const ipfs = client(one);

async function all(source) {
  const items = [];
  for await (const item of source) items.push(item);
  return items;
}

async function bytes(source) {
  return Buffer.concat(await all(source));
}

const text = (content) => new TextEncoder().encode(content);

test("a file gets the CID that Kubo gives it, and is read by ranges", async () => {
  const added = await ipfs.add("hello");
  assert.equal(added.cid.toString(), "QmWfVY9y3xjsixTgbd9AorQxH7VtMpzfx2HaWtsoUYecaX");
  assert.equal(added.size, 13);
  assert.equal((await bytes(ipfs.cat(added.cid))).toString(), "hello");
  assert.equal((await bytes(ipfs.cat(added.cid, { offset: 1, length: 3 }))).toString(), "ell");
  const modern = await ipfs.add("hello", { cidVersion: 1 });
  assert.equal(modern.cid.toString(), "bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq");
  const loose = await ipfs.add("not pinned", { pin: false });
  assert.equal((await bytes(ipfs.cat(loose.cid))).toString(), "not pinned");
  await assert.rejects(all(ipfs.pin.ls({ paths: loose.cid })), /is not pinned/);
  const hashed = await ipfs.add("hello again", { onlyHash: true });
  await assert.rejects(all(ipfs.cat(hashed.cid, { offline: true })), /not stored|not found|offline/i);
});

test("folders are added from iterables, listed and read", async () => {
  async function* entries() {
    yield { path: "site/index.html", content: text("<p>Hello.") };
    yield { path: "site/a b/50% ä", content: (async function* () { yield text("one"); yield text("two"); })() };
    yield { path: "site/empty" };
    yield { path: "other", content: text("beside") };
  }
  const added = await all(ipfs.addAll(entries(), { wrapWithDirectory: true, cidVersion: 1 }));
  const paths = added.map(({ path }) => path).sort();
  assert.deepEqual(paths, ["", "other", "site", "site/a b", "site/a b/50% ä", "site/empty", "site/index.html"]);
  const root = added.find(({ path }) => path === "").cid;
  const listed = await all(ipfs.ls(root));
  assert.deepEqual(listed.map(({ name, type }) => [name, type]), [["other", "file"], ["site", "dir"]]);
  assert.equal((await bytes(ipfs.cat(`/ipfs/${root}/site/a b/50% ä`))).toString(), "onetwo");
  const archive = await bytes(ipfs.get(root));
  assert.ok(archive.includes("<p>Hello."), "the archive has the file");
  const name = archive.subarray(0, archive.indexOf(0)).toString();
  assert.deepEqual([name, archive[156]], [root.toString(), "5".charCodeAt(0)], "the first entry is the folder, without a slash");
  const pinned = await all(ipfs.pin.ls({ paths: root }));
  assert.equal(pinned[0].type, "recursive");
});

test("a large file is added, with progress events", async () => {
  const content = randomBytes(20_000_000);
  const seen = [];
  async function* pieces() {
    for (let at = 0; at < content.length; at += 100_000) yield content.subarray(at, at + 100_000);
  }
  const added = await ipfs.add(pieces(), { progress: (read) => seen.push(read) });
  assert.ok(seen.length > 1 && seen.every((read, at) => at === 0 || read >= seen[at - 1]), `${seen}`);
  assert.ok(content.equals(await bytes(ipfs.cat(added.cid))), "the same bytes");
  const answer = await fetch(`${one.gateway}/ipfs/${added.cid}`);
  assert.ok(content.equals(Buffer.from(await answer.arrayBuffer())), "the same bytes from the gateway");
});

test("blocks", async () => {
  const cid = await ipfs.block.put(text("hello"));
  assert.equal(cid.toString(), "bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq");
  assert.equal(Buffer.from(await ipfs.block.get(cid)).toString(), "hello");
  assert.deepEqual(await ipfs.block.stat(cid), { cid, size: 5 });
  const other = await ipfs.block.put(text("hello"), { format: "dag-cbor", mhtype: "sha2-512", version: 1 });
  assert.equal(other.code, 0x71);
  await assert.rejects(ipfs.block.get("nonsense"), /not a CID/);
});

test("documents and archives", async () => {
  const link = await ipfs.block.put(text("linked"));
  const cid = await ipfs.dag.put({ link, list: [1, "two"], bytes: text("b") });
  const got = await ipfs.dag.get(cid);
  assert.deepEqual(got.value.list, [1, "two"]);
  assert.equal(got.value.link.toString(), link.toString());
  const resolved = await ipfs.dag.resolve(`${cid}/list/1`);
  assert.deepEqual([resolved.cid.toString(), resolved.remainderPath], [cid.toString(), "list/1"]);
  const archive = await bytes(ipfs.dag.export(cid));
  const there = client(two);
  const imported = await all(there.dag.import([archive]));
  assert.deepEqual(imported.map(({ root }) => [root.cid.toString(), root.pinErrorMsg]), [[cid.toString(), ""]]);
  assert.deepEqual((await there.dag.get(cid, { offline: true })).value.list, [1, "two"]);
  await assert.rejects(all(there.dag.import([archive.subarray(0, archive.length - 3)])), /import failed/);
});

test("pins", async () => {
  const cid = await ipfs.block.put(text("pinned or not"));
  assert.equal((await ipfs.pin.add(cid, { name: "mine" })).toString(), cid.toString());
  const named = await all(ipfs.pin.ls({ name: "min" }));
  assert.deepEqual(named.map((pin) => [pin.cid.toString(), pin.type, pin.name]), [[cid.toString(), "recursive", "mine"]]);
  assert.ok((await all(ipfs.pin.ls({ type: "recursive" }))).some((pin) => pin.cid.equals(cid)));
  assert.equal((await ipfs.pin.rm(cid)).toString(), cid.toString());
  await assert.rejects(all(ipfs.pin.ls({ paths: cid })), /is not pinned/);
  const nowhere = CID.parse("bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e");
  await assert.rejects(ipfs.pin.add(nowhere, { timeout: 300 }), { name: "TimeoutError" });
});

test("names and keys", async () => {
  const { cid } = await ipfs.add("published");
  const key = await ipfs.key.gen("site");
  assert.ok((await ipfs.key.list()).some(({ name, id }) => name === "site" && id === key.id));
  const published = await ipfs.name.publish(cid, { key: "site", allowOffline: true, lifetime: "24h" });
  assert.deepEqual([published.name, published.value], [key.id, `/ipfs/${cid}`]);
  assert.deepEqual(await all(ipfs.name.resolve(key.id)), [`/ipfs/${cid}`]);
  assert.equal(await ipfs.resolve(`/ipns/${key.id}`), `/ipfs/${cid}`);
  assert.equal((await bytes(ipfs.cat(`/ipns/${key.id}`))).toString(), "published");
});

test("the node and its peers", async () => {
  const id = await ipfs.id();
  assert.equal(id.id.toString(), one.peerId);
  assert.match(id.agentVersion, /^causeway\//);
  assert.ok(await ipfs.isOnline());
  assert.match((await ipfs.version()).version, /^\d+\.\d+\.\d+$/);
  assert.deepEqual(await ipfs.swarm.connect(two.p2p), [`connect ${two.peerId} success`]);
  const peers = await ipfs.swarm.peers({ verbose: true });
  assert.ok(peers.some(({ peer }) => peer.toString() === two.peerId));
  assert.ok((await ipfs.swarm.addrs()).some(({ id: peer }) => peer.toString() === two.peerId));
  assert.ok((await ipfs.swarm.localAddrs()).length > 0);
  // Content of the other gateway is fetched.
  const { cid } = await client(two).add(randomBytes(1_000_000), { cidVersion: 1 });
  assert.equal((await bytes(ipfs.cat(cid))).length, 1_000_000);
  assert.ok((await ipfs.repo.stat()).numObjects > 0n);
});

test("invalid and forbidden requests get an error message", async () => {
  await assert.rejects(ipfs.files.mkdir("/x"), /there is no such command/);
  await assert.rejects(ipfs.add("x", { hashAlg: "md5" }), /hash function/);
  await assert.rejects(client(one, "wrong").id(), /token/);
});
