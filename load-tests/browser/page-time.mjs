// How long a page takes in Chromium, whole: from the navigation to the end of its load event, as the browser itself says.
//
//   node page-time.mjs MODULES CHROMIUM SITE URL…
//
// MODULES is a folder with playwright-core in its node_modules, SITE one with the files that every URL should show. Each
// page is opened once, with nothing cached. Prints a JSON array of milliseconds, in the order of the URLs, and fails unless
// every file of the site arrived as it is.

import { readdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

const PATIENCE_MS = 120_000;
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];

const [modules, executablePath, site, ...urls] = process.argv.slice(2);
const files = (await readdir(site)).filter((name) => name !== "index.html");
const playwright = createRequire(join(modules, "package.json"))("playwright-core");
const browser = await playwright.chromium.launch({ executablePath, args: FLAGS });
try {
  const times = [];
  for (const url of urls) times.push(await open(url));
  console.log(JSON.stringify(times));
} finally {
  await browser.close();
}

async function open(url) {
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    const responses = new Map();
    page.on("response", (response) => responses.set(new URL(response.url()).pathname.split("/").at(-1), response));
    await page.goto(url, { waitUntil: "load", timeout: PATIENCE_MS });
    const milliseconds = await page.evaluate(() => {
      const [navigation] = performance.getEntriesByType("navigation");
      // The end of the event itself is noted after it.
      return navigation.loadEventEnd || navigation.loadEventStart;
    });
    for (const name of files) {
      const body = await responses.get(name)?.body();
      if (!body?.equals(await readFile(join(site, name)))) throw new Error(`${url}: ${name} did not arrive as it is`);
    }
    return milliseconds;
  } finally {
    await context.close();
  }
}
