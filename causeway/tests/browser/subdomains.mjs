// A subdomain for each site, so that browsers isolate them.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { open } from "./support/browser.mjs";

/** A site whose _redirects sends every unknown address to index.html, which says "hello world". */
const SINGLE_PAGE = "bafybeib5lboymwd6p2eo4qb2lkueaine577flvsjjeuevmp2nlio72xv5q";
/** Names in the fixtures' map of DNSLinks: for a directory with ą/ę/file-źł.txt, and for the single page. */
const NAME = "dnslink-dir-listing.example.org";
const NAME_OF_SINGLE_PAGE = "dnslink-enabled-with-spa.example.org";

export default function subdomains({ gateway, browser, content }) {
  const host = (cid) => `http://${cid}.ipfs.localhost:${gateway.port}`;
  const paths = `http://localhost:${gateway.port}`;
  const { site, otherSite, folder } = content.cids;

  describe("a subdomain gateway", () => {
    it("redirects a path to a subdomain of its own", () => browser.page(async (page) => {
      await open(page, `${paths}/ipfs/${site}/about/?x=1#part`);
      assert.equal(page.url(), `${host(site)}/about/?x=1#part`);
      await page.getByRole("link", { name: "Back" }).click();
      await page.waitForURL(`${host(site)}/`);
      assert.equal(await page.locator("#from-script").innerText(), "made by a script");
    }));

    it("does so for a host that is not this machine's name", () => browser.page(async (page) => {
      await open(page, `http://example.com:${gateway.port}/ipfs/${site}/`);
      assert.equal(page.url(), `http://${site}.ipfs.example.com:${gateway.port}/`);
      assert.equal(await page.title(), "A site");
    }));

    it("converts a CIDv0 into a CIDv1 for the subdomain", () => browser.page(async (page) => {
      // "hello\n", as old versions of `ipfs add` stored it.
      await open(page, `${paths}/ipfs/QmZULkCELmmk5XNfCgTnCyFgAVxBRBXyDHGGMVoLFLiXEN`);
      assert.match(page.url(), /^http:\/\/baf[a-z2-7]+\.ipfs\.localhost:/);
      assert.equal(await page.evaluate(() => document.body.innerText.trim()), "hello");
    }));

    it("opens links of ipfs: and ipns:", () => browser.page(async (page) => {
      // The request of browsers with the gateway as their handler of ipfs: links.
      await open(page, `${paths}/ipfs/?uri=${encodeURIComponent(`ipfs://${site}/about/`)}`);
      assert.equal(page.url(), `${host(site)}/about/`);
    }));

    it("isolates the storage of sites", () => browser.page(async (page) => {
      await open(page, `${host(site)}/`);
      await page.evaluate(() => {
        localStorage.setItem("secret", "of the site");
        document.cookie = "secret=1; path=/";
      });
      await open(page, `${host(otherSite)}/`);
      assert.equal(await page.evaluate(() => localStorage.getItem("secret")), null);
      assert.equal(await page.evaluate(() => document.cookie), "");
      await open(page, `${host(site)}/`);
      assert.equal(await page.evaluate(() => localStorage.getItem("secret")), "of the site");
    }));

    it("lists directories with links that stay on the host", () => browser.page(async (page) => {
      await open(page, `${host(folder)}/`);
      await browser.picture(page, "listing-subdomain");
      await page.getByRole("link", { name: "notes.v2" }).click();
      await page.waitForURL(`${host(folder)}/notes.v2/`);
      await page.locator("header h1").getByRole("link").first().click();
      await page.getByText("notes.v2").waitFor();
    }));

    it("applies the rules of _redirects", () => browser.page(async (page) => {
      for (const path of ["/", "/deep/inside/the/app", "/another?with=query"]) {
        await open(page, `${host(SINGLE_PAGE)}${path}`);
        assert.equal(page.url(), `${host(SINGLE_PAGE)}${path}`);
        assert.equal(await page.evaluate(() => document.body.innerText.trim()), "hello world");
      }
    }));

    it("inlines a name into one label", () => browser.page(async (page) => {
      await open(page, `${paths}/ipns/${NAME}/`);
      assert.equal(page.url(), `http://${NAME.replaceAll("-", "--").replaceAll(".", "-")}.ipns.localhost:${gateway.port}/`);
      await page.getByText("ą").first().click();
      await page.getByText("ę").first().click();
      await page.getByText("file-źł.txt").click();
      assert.ok((await page.evaluate(() => document.body.innerText)).length > 0);
    }));
  });

  describe("a host with a DNSLink", () => {
    it("shows the content of its name", () => browser.page(async (page) => {
      await open(page, `http://${NAME_OF_SINGLE_PAGE}:${gateway.port}/deep/inside/the/app`);
      assert.equal(await page.evaluate(() => document.body.innerText.trim()), "hello world");
    }));

    it("lists its directories by its own name", () => browser.page(async (page) => {
      await open(page, `http://${NAME}:${gateway.port}/`);
      await browser.picture(page, "listing-dnslink");
      await page.getByText("ą").first().click();
      await page.waitForURL(`http://${NAME}:${gateway.port}/${encodeURIComponent("ą")}/`);
      await page.locator("header h1").getByRole("link").first().click();
      await page.waitForURL(`http://${NAME}:${gateway.port}/`);
    }));
  });

  describe("a document at a host with a DNSLink", () => {
    it("has no broken links", () => browser.page(async (page) => {
      await open(page, `http://document.example.org:${gateway.port}/`);
      const link = page.getByRole("link", { name: site });
      const { host: linked, href } = await link.evaluate(({ host, href }) => ({ host, href }));
      // Elsewhere it may link to a CID inspector.
      if (linked.startsWith("document.example.org")) await open(page, href);
    }));
  });

  describe("a service worker", () => {
    const register = (page, script, scope) => page.evaluate(async ({ script, scope }) => {
      try {
        await navigator.serviceWorker.register(script, { scope });
        return "registered";
      } catch (error) {
        return error.name;
      }
    }, { script, scope });

    it("is rejected where it would control all sites of the host", () => browser.page(async (page) => {
      await open(page, `${gateway.origin}/ipfs/${site}/`);
      const script = `/ipfs/${content.cids.worker}?filename=sw.js`;
      // The default scope of such a script would be /ipfs/. The gateway rejects it with a status that the browser
      // treats as a failed fetch.
      const asked = page.context().waitForEvent("response", (response) => response.url().endsWith(script));
      assert.equal(await register(page, script, "/ipfs/"), "TypeError");
      assert.equal((await asked).status(), 400);
      // The browser rejects a scope above the script's own folder, unless the gateway allows it.
      assert.equal(await register(page, `/ipfs/${site}/sw.js`, "/ipfs/"), "SecurityError");
    }, { failures: true }));

    it("works within its own host", () => browser.page(async (page) => {
      await open(page, `${host(site)}/`);
      assert.equal(await register(page, "/sw.js", "/"), "registered");
      await page.evaluate(() => navigator.serviceWorker.ready);
      await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
      assert.equal(await page.evaluate(() => fetch("/from-worker").then((response) => response.text())), "worker");
      // It does not control other sites.
      await open(page, `${host(otherSite)}/`);
      assert.equal(await page.evaluate(() => fetch("/from-worker").then((response) => response.status)), 404);
    }, { failures: true }));
  });
}
