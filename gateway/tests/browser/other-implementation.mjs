// Kubo reads what the gateway hands out, on a repository of its own without any network.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { NESTED, manyName, manyText } from "./support/content.mjs";
import { Kubo } from "./support/kubo.mjs";

const CAR = "application/vnd.ipld.car";

export default function otherImplementation({ gateway, content, kubo, folder }) {
  const archive = async (path) => {
    const response = await fetch(`${gateway.origin}/ipfs/${path}`, { headers: { accept: CAR } });
    assert.equal(response.status, 200);
    assert.ok(response.headers.get("content-type").startsWith(CAR), response.headers.get("content-type"));
    return Buffer.from(await response.arrayBuffer());
  };
  let repositories = 0;
  const fresh = async () => new Kubo(kubo, await folder(`kubo-${(repositories += 1)}`));

  describe("an archive from the gateway, in Kubo", () => {
    for (const name of ["folder", "many", "site", "document"]) {
      it(`is complete: ${name}`, async () => {
        const cid = content.cids[name];
        const bytes = await archive(`${cid}?format=car`);
        const other = await fresh();
        // Pinning the root walks everything below it.
        other.run(["dag", "import", "--pin-roots"], { input: bytes });
        const exported = other.run(["dag", "export", "--progress=false", cid]);
        // Both go depth first and say each block once.
        assert.ok(exported.equals(bytes), `${exported.length} bytes from Kubo, ${bytes.length} from the gateway`);
      });
    }

    it("holds the file that a path leads to, and the way there", async () => {
      const other = await fresh();
      const path = [content.cids.folder, ...NESTED, "file.txt"];
      const bytes = await archive(`${path.map(encodeURIComponent).join("/")}?format=car&dag-scope=entity`);
      other.run(["dag", "import", "--pin-roots=false"], { input: bytes });
      assert.equal(other.text(["cat", `/ipfs/${path.join("/")}`]), "at the bottom");
      assert.throws(() => other.run(["cat", `/ipfs/${content.cids.folder}/film.mp4`]), "no more than was asked for");
    });

    it("holds what one entry of a sharded directory needs", async () => {
      const other = await fresh();
      const path = `${content.cids.many}/${manyName(7)}`;
      const bytes = await archive(`${path}?format=car&dag-scope=all`);
      other.run(["dag", "import", "--pin-roots=false"], { input: bytes });
      assert.equal(other.run(["cat", `/ipfs/${path}`]).toString(), manyText(7));
    });

    it("is a block that hashes to its CID", async () => {
      const other = await fresh();
      const response = await fetch(`${gateway.origin}/ipfs/${content.cids.document}?format=raw`);
      const bytes = Buffer.from(await response.arrayBuffer());
      assert.equal(other.text(["block", "put", "--cid-codec=dag-cbor"], { input: bytes }), content.cids.document);
    });
  });
}
