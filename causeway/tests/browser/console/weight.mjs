// What the console costs: bytes, the time to the first paint, shifts of the layout, and memory while figures run.
//
// An hour of figures is CAUSEWAY_CONSOLE_SECONDS=3600. Otherwise they run for a short time, but faster: a proxy repeats
// each event of the gateway.

import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { listen } from "../support/proxy.mjs";
import { PAGES, follow, heading, navigation, settled } from "./driver.mjs";
import { traffic } from "./world.mjs";

const ASSETS_BYTES_MAX = 300 * 1024;
const FIRST_PAINT_MS_MAX = 1000;
/** How often the first paint is measured at most: other load delays it. */
const PAINTS_MAX = 15;
const STEADY_MS = 10_000;
const STEADY_TIMES_MAX = 5;
/** How far the heap may grow while figures run: samples of the charts, up to their bound, and compiled code. */
const GROWTH_BYTES_MAX = 1024 * 1024;
const RUN_SECONDS = Number(process.env.CAUSEWAY_CONSOLE_SECONDS ?? 20);
const IS_SHORT = RUN_SECONDS < 600;
/** How often each event is repeated in a short run. */
const REPEATS = 20;

/** Heap and DOM after garbage collection. */
async function memory(session) {
  for (let times = 0; times < 3; times += 1) await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  const { nodes, jsEventListeners: listeners, documents } = await session.send("Memory.getDOMCounters");
  return { heap: usedSize, nodes, listeners, documents };
}

/** Passes requests on; each event of `/api/v1/events` is sent several times, with a time of its own. */
async function fastForward(origin) {
  const target = new URL(origin);
  const server = createServer((asked, answer) => {
    const { method, url, headers } = asked;
    const onward = request({ host: target.hostname, port: target.port, path: url, method, headers }, (given) => {
      answer.writeHead(given.statusCode, given.headers);
      if (!url.startsWith("/api/v1/events")) {
        given.pipe(answer);
        return;
      }
      let rest = "";
      given.setEncoding("utf8").on("data", (text) => {
        const events = (rest + text).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          answer.write(`${event}\n\n`);
          for (let number = 1; number < REPEATS; number += 1) {
            setTimeout(() => answer.write(`${event}\n\n`), (number * 1000) / REPEATS);
          }
        }
      });
      given.on("end", () => answer.end());
    });
    onward.on("error", () => answer.destroy());
    answer.on("close", () => onward.destroy());
    asked.pipe(onward);
  });
  return listen(server);
}

/** The number of bytes of a body as it is sent. */
function bytesOf(url) {
  const { hostname, port, pathname } = new URL(url);
  const options = { host: hostname, port, path: pathname, headers: { "accept-encoding": "gzip" } };
  return new Promise((resolve, reject) => {
    request(options, (answer) => {
      const chunks = [];
      answer.on("data", (chunk) => chunks.push(chunk)).on("end", () => {
        const body = Buffer.concat(chunks);
        // The server of the sources does not compress.
        resolve((process.env.CAUSEWAY_CONSOLE_SOURCES ? gzipSync(body) : body).length);
      });
    }).on("error", reject).end();
  });
}

/** The layout shifts of some time, and how often the findings about the gateway changed in it. */
function observeShifts(wait) {
  return new Promise((resolve) => {
    const found = [];
    let others = 0;
    const observer = new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) {
        if (entry.hadRecentInput) continue;
        const where = entry.sources.map(({ node }) => (node?.nodeType === 1 ? node : node?.parentElement)?.outerHTML.slice(0, 120));
        found.push(`${entry.value.toFixed(5)}: ${where.join(" | ")}`);
      }
    });
    const findings = new MutationObserver(() => { others += 1; });
    // Its class is set whenever its sentence or its findings change.
    for (const state of document.querySelectorAll(".card.state")) findings.observe(state, { attributeFilter: ["class"] });
    observer.observe({ type: "layout-shift" });
    setTimeout(() => {
      observer.disconnect();
      findings.disconnect();
      resolve({ found, others });
    }, wait);
  });
}

export default function weight({ console_, gateway, content }) {
  describe("the console", () => {
    it("is light", () => console_.signedIn(async (page) => {
      for (const id of Object.keys(PAGES)) await follow(page, id);
      const urls = await page.evaluate(() => performance.getEntriesByType("resource").map(({ name }) => name));
      const files = new Set([`${console_.origin}/`, ...urls.filter((url) => new URL(url).pathname.startsWith("/console/"))]);
      let bytes = 0;
      for (const url of files) bytes += await bytesOf(url);
      assert.ok(files.size > 10, "all modules are counted");
      assert.ok(bytes < ASSETS_BYTES_MAX, `${files.size} files have ${bytes} bytes`);
      console.log(`    ${files.size} files, ${(bytes / 1024).toFixed(1)} KiB compressed`);
    }));

    it("paints soon", async () => {
      const times = [];
      // One that is not delayed by other load counts.
      while (times.length < PAINTS_MAX && !times.some((time) => time < FIRST_PAINT_MS_MAX)) {
        times.push(await console_.signedIn((page) => page.evaluate(() => new Promise((resolve) => {
          const observer = new PerformanceObserver((list) => {
            const paint = list.getEntriesByName("first-contentful-paint")[0];
            if (paint) resolve(paint.startTime);
          });
          observer.observe({ type: "paint", buffered: true });
        }))));
      }
      assert.ok(Math.min(...times) < FIRST_PAINT_MS_MAX, `first paints after ${times.join(", ")} ms`);
      console.log(`    first paints after ${times.map((time) => time.toFixed(0)).join(", ")} ms`);
    });

    it("does not move while figures run", async () => {
      const load = traffic(content.pathsOf(0));
      const shifts = async (id, view) => console_.signedIn(async (page) => {
        await settled(page);
        // What is wrong with the gateway may move the rest of the page when it appears or ends: that is not a figure.
        for (let times = 1; ; times += 1) {
          const { found, others } = await page.evaluate(observeShifts, STEADY_MS);
          if (others > 0 && times < STEADY_TIMES_MAX) continue;
          return assert.deepEqual(found, [], `${id} on a ${view} does not shift`);
        }
      }, { at: id, view });
      try {
        // The pages whose figures run, at the same time.
        await Promise.all([["overview", "desktop"], ["overview", "phone"], ["store", "desktop"], ["peers", "desktop"]]
          .map(([id, view]) => shifts(id, view)));
      } finally {
        await load.stop();
      }
    });

    it("does not grow while figures run", async () => {
      const fast = IS_SHORT ? await fastForward(console_.origin) : null;
      const load = traffic(content.pathsOf(1), { workers: 1 });
      try {
        await (fast ? console_.at(fast.origin) : console_).signedIn(async (page) => {
          await settled(page);
          const session = await page.context().newCDPSession(page);
          // Code is compiled, and caches of the browser are filled.
          await pause(IS_SHORT ? 5000 : 60_000);
          const before = await memory(session);
          await pause(RUN_SECONDS * 1000);
          const after = await memory(session);
          const growth = after.heap - before.heap;
          const figures = `${RUN_SECONDS} s${IS_SHORT ? ` at ${REPEATS} times the speed` : ""}: ${JSON.stringify({ before, after })}`;
          assert.ok(growth < GROWTH_BYTES_MAX, figures);
          assert.ok(after.nodes <= before.nodes * 1.1 + 50, figures);
          assert.ok(after.listeners <= before.listeners * 1.1 + 20, figures);
          console.log(`    ${figures}`);
        });
      } finally {
        await load.stop();
        await fast?.close();
      }
    });

    it("releases what its pages used", () => console_.signedIn(async (page) => {
      const session = await page.context().newCDPSession(page);
      const visitAll = async () => {
        for (const id of [...Object.keys(PAGES).slice(1), "overview"]) {
          await page.evaluate((hash) => {
            location.hash = hash;
          }, `#/${id}`);
          await heading(page, id).waitFor();
          await settled(page);
        }
        return memory(session);
      };
      await visitAll();
      const before = await visitAll();
      let after;
      for (let round = 0; round < 2; round += 1) after = await visitAll();
      const figures = JSON.stringify({ before, after });
      assert.ok(after.listeners <= before.listeners + 5, figures);
      assert.ok(after.nodes <= before.nodes * 1.05 + 50, figures);
      assert.equal(after.documents, before.documents, figures);
      console.log(`    ${figures}`);
      await page.getByRole("button", { name: "Sign out" }).click();
      await navigation(page).waitFor({ state: "detached" });
    }));
  });
}
