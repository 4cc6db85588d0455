// Clients of the resumable uploads and of the Pinning Service API from npm, with a token of the scope "pin" only.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createReadStream, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { TOKEN, command, dir, packaged, start } from "./nodes.mjs";

const tus = (await packaged("tus-js-client/lib.es5/node/index.js")).default;
const { Configuration, RemotePinningServiceClient, Status } = await packaged(
  "@ipfs-shipyard/pinning-service-client/dist/src/index.js",
);

const MIB = 1024 * 1024;
const WAIT_MS = 60_000;

const [node, other] = await Promise.all([start("node"), start("other")]);
const token = command(node, "token", "create", "--scope", "pin", "--name", "clients");
const headers = { authorization: `Bearer ${token}` };

const content = randomBytes(20 * MIB);
const file = join(dir, "large.bin");
writeFileSync(file, content);

/** An upload of a tus client with its requests and answers: `done` resolves when it is complete. */
function upload(settings) {
  const answers = [];
  let client;
  const done = new Promise((onSuccess, onError) => {
    client = new tus.Upload(createReadStream(file), {
      endpoint: `${node.admin}/api/v1/uploads`,
      headers,
      uploadSize: content.length,
      chunkSize: MIB,
      metadata: { filename: "large.bin", filetype: "application/octet-stream" },
      retryDelays: null,
      urlStorage: new tus.FileUrlStorage(join(dir, "urls.json")),
      onAfterResponse: (request, response) =>
        answers.push([request.getMethod(), response.getStatus(), Number(response.getHeader("Upload-Offset") ?? NaN)]),
      onSuccess: () => onSuccess(),
      onError,
      ...settings,
    });
  });
  // An aborted upload is not awaited.
  done.catch(() => {});
  return { client, done, answers };
}

/** Starts an upload in chunks, and aborts it when `enough` returns true for the received bytes. */
async function interrupted(settings, enough, terminate = false) {
  let given;
  const up = upload({
    ...settings,
    onChunkComplete: (_, arrived) => {
      if (!given && enough(arrived)) given = up.client.abort(terminate);
    },
  });
  const begun = new Promise((resolve) => {
    const look = setInterval(() => given && (clearInterval(look), resolve(given)), 5);
  });
  up.client.start();
  await Promise.race([begun, up.done.then(() => assert.fail("it was to be given up"))]);
  return up;
}

/**
 * A proxy to the admin listener that forwards a limited number of bytes of requests and then stalls: then it
 * is `full`. `open` closes stalled connections, and forwards everything from then on.
 */
async function narrow(bytes) {
  const { hostname, port } = new URL(node.admin);
  const standing = new Set();
  let left = bytes;
  let fill;
  const full = new Promise((resolve) => (fill = resolve));
  const server = createServer((client) => {
    const gateway = connect(Number(port), hostname);
    const pair = { client, gateway };
    standing.add(pair);
    client.on("data", (data) => {
      left -= data.length;
      gateway.write(data);
      if (left > 0) return;
      client.pause();
      fill();
    });
    gateway.pipe(client);
    for (const [from, to] of [[client, gateway], [gateway, client]]) {
      from.on("error", () => {}).on("close", () => (standing.delete(pair), to.destroy()));
    }
  });
  server.listen(0, "127.0.0.1").unref();
  await once(server, "listening");
  const open = async () => {
    left = Infinity;
    for (const { client, gateway } of [...standing]) {
      // All forwarded bytes arrive before the end.
      while (gateway.writableLength > 0 && !gateway.destroyed) await delay(5);
      client.destroy();
    }
  };
  return { endpoint: `http://127.0.0.1:${server.address().port}/api/v1/uploads`, full, open };
}

/** The uploaded content, as the gateway serves it. */
async function served(client) {
  const about = await (await fetch(client.url, { headers })).json();
  assert.equal(about.state, "done", JSON.stringify(about));
  const [{ cid, name }] = about.result.roots;
  assert.equal(name, "large.bin");
  return { cid, bytes: Buffer.from(await (await fetch(`${node.gateway}/ipfs/${cid}`)).arrayBuffer()) };
}

test("tus: an upload continues after a chunk", async () => {
  const fingerprint = async () => "between pieces";
  const first = await interrupted({ fingerprint }, (arrived) => arrived >= 7 * MIB);
  const second = upload({ fingerprint });
  const [previous] = await second.client.findPreviousUploads();
  assert.equal(previous.uploadUrl, first.client.url);
  second.client.resumeFromPreviousUpload(previous);
  second.client.start();
  await second.done;
  assert.deepEqual(second.answers[0], ["HEAD", 200, 7 * MIB]);
  assert.deepEqual(second.answers.at(-1), ["PATCH", 204, content.length]);
  assert.equal(second.answers.length, 1 + 13, "nothing was sent twice");
  assert.ok(content.equals((await served(second.client)).bytes), "the same bytes from the gateway");
});

test("tus: received bytes of an interrupted chunk are not sent again", async () => {
  const fingerprint = async () => "within a piece";
  // More than fits into socket buffers.
  const { endpoint, full, open } = await narrow(16 * MIB);
  const whole = { fingerprint, endpoint, chunkSize: Infinity };
  const first = upload(whole);
  first.client.start();
  await full;
  await first.client.abort();
  await open();
  const second = upload(whole);
  second.client.resumeFromPreviousUpload((await second.client.findPreviousUploads())[0]);
  second.client.start();
  await second.done;
  const [method, status, arrived] = second.answers[0];
  assert.deepEqual([method, status], ["HEAD", 200]);
  assert.ok(arrived > 0 && arrived < content.length, `${arrived}`);
  assert.equal(second.answers.length, 2);
  assert.ok(content.equals((await served(second.client)).bytes), "the same bytes from the gateway");
});

test("tus: a terminated upload is deleted", async () => {
  const given = await interrupted({}, (arrived) => arrived >= 2 * MIB, true);
  assert.deepEqual(given.answers.at(-1).slice(0, 2), ["DELETE", 204]);
  assert.deepEqual((await (await fetch(`${node.admin}/api/v1/uploads`, { headers })).json()).uploads.filter(
    ({ state }) => state === "open"), []);
});

test("tus: a client that can only send GET and POST", async () => {
  const up = upload({ overridePatchMethod: true, chunkSize: 8 * MIB });
  up.client.start();
  await up.done;
  assert.deepEqual(up.answers.map(([method]) => method), ["POST", "POST", "POST", "POST"]);
  assert.ok(content.equals((await served(up.client)).bytes), "the same bytes from the gateway");
});

test("tus: rejections have a message", async () => {
  const wrong = upload({ headers: { authorization: "Bearer wrong" } });
  wrong.client.start();
  await assert.rejects(wrong.done, /response code: 401.*token/s);
  const unknown = upload({ uploadLengthDeferred: true, uploadSize: null });
  unknown.client.start();
  await assert.rejects(unknown.done, /response code: 400.*upload-length/s);
});

/** Polls until the answer matches a condition. */
async function until(ask, is) {
  for (const end = Date.now() + WAIT_MS; ; ) {
    const answer = await ask();
    if (is(answer)) return answer;
    assert.ok(Date.now() < end, JSON.stringify(answer));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const service = (accessToken) =>
  new RemotePinningServiceClient(new Configuration({ endpointUrl: `${node.admin}/psa`, accessToken }));

test("pinning service: content of another node is pinned, found, replaced and unpinned", async () => {
  const form = new FormData();
  form.append("file", new Blob([content.subarray(0, MIB)]), "pinned.bin");
  const admin = { authorization: `Bearer ${TOKEN}` };
  const taken = await fetch(`${other.admin}/upload`, { method: "POST", headers: admin, body: form });
  const cid = (await taken.json()).roots[0].cid;
  const pins = service(token);
  const pin = { cid, name: "a name", origins: [other.p2p], meta: { app: "tests" } };
  const asked = await pins.pinsPost({ pin });
  assert.deepEqual([asked.pin.cid, asked.pin.name, asked.pin.meta], [cid, "a name", { app: "tests" }]);
  assert.ok(asked.created instanceof Date && asked.delegates.length > 0);
  const { requestid } = asked;
  await until(() => pins.pinsRequestidGet({ requestid }), ({ status }) => status === Status.Pinned);
  const query = { cid: [cid], name: "a name", status: [Status.Pinned], meta: { app: "tests" }, before: new Date(Date.now() + 1e6) };
  assert.deepEqual((await pins.pinsGet(query)).results.map((found) => found.requestid), [requestid]);
  assert.equal((await pins.pinsGet({ ...query, name: "another" })).count, 0);
  const body = await (await fetch(`${node.gateway}/ipfs/${cid}`)).arrayBuffer();
  assert.ok(content.subarray(0, MIB).equals(Buffer.from(body)), "the gateway has it");
  const nobodys = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";
  const instead = await pins.pinsRequestidPost({ requestid, pin: { cid: nobodys, name: "another" } });
  assert.ok([Status.Queued, Status.Pinning].includes(instead.status), instead.status);
  const waiting = await pins.pinsGet({ status: [Status.Queued, Status.Pinning] });
  assert.deepEqual(waiting.results.map((found) => found.pin.cid), [nobodys]);
  await assert.rejects(pins.pinsRequestidGet({ requestid }), { status: 404 });
  await pins.pinsRequestidDelete({ requestid: instead.requestid });
  assert.equal((await pins.pinsGet({ status: Object.values(Status), cid: [nobodys] })).count, 0);
});

test("pinning service: a wrong token is rejected", async () => {
  await assert.rejects(service("wrong").pinsGet({}), { status: 401 });
});
