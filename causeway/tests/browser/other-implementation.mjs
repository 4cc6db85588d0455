// Other programs read the gateway's archives: an offline Kubo with its own repository, and tar.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { LONG_NAME, NESTED, PROVOKING_NAMES, manyName, manyText } from "./support/content.mjs";
import { Kubo } from "./support/kubo.mjs";

const CAR = "application/vnd.ipld.car";

export default function otherImplementation({ gateway, content, kubo, folder }) {
  const fetched = async (path, type) => {
    const response = await fetch(`${gateway.origin}/ipfs/${path}`, { headers: { accept: type } });
    assert.equal(response.status, 200);
    assert.ok(response.headers.get("content-type").startsWith(type), response.headers.get("content-type"));
    return Buffer.from(await response.arrayBuffer());
  };
  const archive = (path) => fetched(path, CAR);
  let repositories = 0;
  const fresh = async () => new Kubo(kubo, await folder(`kubo-${(repositories += 1)}`));

  describe("an archive from the gateway, in Kubo", () => {
    for (const name of ["folder", "many", "site", "dagCbor"]) {
      it(`is complete: ${name}`, async () => {
        const cid = content.cids[name];
        const bytes = await archive(`${cid}?format=car`);
        const other = await fresh();
        // Pinning the root traverses the whole DAG.
        other.run(["dag", "import", "--pin-roots"], { input: bytes });
        const exported = other.run(["dag", "export", "--progress=false", cid]);
        // Both are depth first without duplicates.
        assert.ok(exported.equals(bytes), `${exported.length} bytes from Kubo, ${bytes.length} from the gateway`);
      });
    }

    it("has the file that a path resolves to, and the blocks of the path", async () => {
      const other = await fresh();
      const path = [content.cids.folder, ...NESTED, "file.txt"];
      const bytes = await archive(`${path.map(encodeURIComponent).join("/")}?format=car&dag-scope=entity`);
      other.run(["dag", "import", "--pin-roots=false"], { input: bytes });
      assert.equal(other.text(["cat", `/ipfs/${path.join("/")}`]), "at the bottom");
      assert.throws(() => other.run(["cat", `/ipfs/${content.cids.folder}/film.mp4`]), "no more than was asked for");
    });

    it("has the blocks of one entry of a sharded directory", async () => {
      const other = await fresh();
      const path = `${content.cids.many}/${manyName(7)}`;
      const bytes = await archive(`${path}?format=car&dag-scope=all`);
      other.run(["dag", "import", "--pin-roots=false"], { input: bytes });
      assert.equal(other.run(["cat", `/ipfs/${path}`]).toString(), manyText(7));
    });

    it("is a block that hashes to its CID", async () => {
      const other = await fresh();
      const response = await fetch(`${gateway.origin}/ipfs/${content.cids.dagCbor}?format=raw`);
      const bytes = Buffer.from(await response.arrayBuffer());
      assert.equal(other.text(["block", "put", "--cid-codec=dag-cbor"], { input: bytes }), content.cids.dagCbor);
    });
  });

  it("an archive from the gateway, in tar, has every file under its name", async () => {
    const bytes = await fetched(`${content.cids.folder}?format=tar`, "application/x-tar");
    const into = await folder("tar");
    const done = spawnSync("tar", ["--extract", "--directory", into], { input: bytes, encoding: "utf8" });
    assert.equal(done.status, 0, done.stderr);
    const names = ["empty.bin", "film.mp4", NESTED[0], LONG_NAME, "notes.v2", "picture.svg", ...PROVOKING_NAMES];
    const root = join(into, content.cids.folder);
    assert.deepEqual((await readdir(root)).sort(), names.sort());
    for (const name of [...PROVOKING_NAMES, LONG_NAME]) assert.equal(await readFile(join(root, name), "utf8"), name);
    assert.ok(content.big.equals(await readFile(join(root, "film.mp4"))));
    assert.equal(await readFile(join(root, ...NESTED, "file.txt"), "utf8"), "at the bottom");
  });
}
