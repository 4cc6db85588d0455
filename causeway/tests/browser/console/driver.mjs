// The console in a browser: signing in, its pages, and what must be true of each use of it.

import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { VIEW_NAMES } from "../support/browser.mjs";

/** The pages in the order of the navigation, by their IDs. */
export const PAGES = {
  overview: "Overview",
  requests: "Requests",
  peers: "Peers",
  content: "Content",
  pins: "Pins",
  uploads: "Uploads",
  store: "Store",
  names: "Names",
  denylists: "Denylists",
  tokens: "Tokens",
  audit: "Audit",
  settings: "Settings",
};
/** Each width in each theme. */
export const VARIANTS = VIEW_NAMES.flatMap((view) => [false, true].map((dark) => ({ view, dark })));
/** The variants of flows, which change something: all of them if asked for, else one of each width and theme. */
export const FLOWS = process.env.CAUSEWAY_CONSOLE_FLOWS === "all"
  ? VARIANTS
  : [{ view: "desktop", dark: false }, { view: "phone", dark: true }];
export const nameOf = ({ view, dark }) => `${view}${dark ? "-dark" : ""}`;

/** How long a condition may take on a busy machine. */
const CONDITION_MS = 45_000;
const POLL_MS = 100;

/** Repeats an asynchronous check until it does not throw; returns its value. */
export async function eventually(check, within = CONDITION_MS) {
  const end = Date.now() + within;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > end) throw error;
    }
    await pause(POLL_MS);
  }
}

/** Sources may be newer than the binary, which then answers 404 to some of their requests. */
const IS_DEVELOPMENT = Boolean(process.env.CAUSEWAY_CONSOLE_SOURCES);

/** Runs checks one after the other, also after one has failed, and fails with all that was found. */
export async function all(checks) {
  const errors = [];
  for (const check of checks) await check().catch((error) => errors.push(error));
  if (errors.length > 0) throw new Error(errors.map((error) => String(error.message)).join("\n\n"));
}

/** Messages that the browser itself logs for answers with an error status and broken connections. */
const FAILED_LOAD = /^Failed to load resource: (the server responded with a status of \d+|net::ERR_)/;

/** The console of a node, at an origin, in one browser. */
export class Console {
  #browser;

  /**
   * @param {object} parts
   * @param {import("../support/browser.mjs").Browser} parts.browser
   * @param {import("../support/causeway.mjs").Causeway} parts.node
   * @param {string} [parts.origin]  where the console is, if not at the node's admin listener
   */
  constructor({ browser, node, origin = node.adminOrigin }) {
    this.#browser = browser;
    this.node = node;
    this.origin = origin;
  }

  /** The same console behind another origin, such as a proxy. */
  at(origin) {
    return new Console({ browser: this.#browser, node: this.node, origin });
  }

  /**
   * Runs `use(page)` in an isolated context. Afterwards asserts that the page logged no error, violated no policy, sent
   * requests to its own origin only, and stored nothing. `refusals`: answers with an error status are expected.
   */
  open(use, { refusals = IS_DEVELOPMENT, origins = [], ...options } = {}) {
    const run = async (page) => {
      page.setDefaultTimeout(CONDITION_MS);
      const found = [];
      const allowed = [this.origin, ...origins];
      const context = page.context();
      context.on("request", (request) => {
        const url = new URL(request.url());
        if (["data:", "blob:"].includes(url.protocol) || allowed.includes(url.origin)) return;
        found.push(`a request for ${request.url()}`);
      });
      context.on("weberror", (error) => found.push(`script error: ${error.error()?.stack ?? error.error()}`));
      context.on("console", (message) => {
        if (!["error", "warning"].includes(message.type())) return;
        if (refusals && FAILED_LOAD.test(message.text())) return;
        found.push(`console: ${message.text()} (${message.location().url})`);
      });
      const result = await use(page);
      await assertNothingStored(page, this.origin);
      assert.deepEqual(found, [], "the page is without failures and stays at its origin");
      return result;
    };
    return this.#browser.page(run, { ...options, failures: true });
  }

  /** Like `open`, on a page that is signed in, at the page with the ID `at`. */
  signedIn(use, { token = this.node.token, at = "overview", ...options } = {}) {
    return this.open(async (page) => {
      await this.signIn(page, token);
      if (at !== "overview") await this.show(page, at);
      return use(page);
    }, options);
  }

  /** Signs in by a link. */
  async signIn(page, token = this.node.token) {
    await page.goto(`${this.origin}/#token=${encodeURIComponent(token)}`);
    await navigation(page).waitFor({ state: "attached" });
  }

  /** Shows a page as an address that was typed does, with its filters. */
  async show(page, id, parameters = {}) {
    const query = new URLSearchParams(parameters).toString();
    await page.goto(`${this.origin}/#/${id}${query ? `?${query}` : ""}`);
    await heading(page, id).waitFor();
  }

  picture(page, name, options) {
    return this.#browser.picture(page, name, options);
  }
}

export const main = (page) => page.getByRole("main");
export const heading = (page, id) => main(page).getByRole("heading", { level: 1, name: PAGES[id], exact: true });
export const navigation = (page) => page.locator("nav");
export const dialogOf = (page) => page.getByRole("dialog");
export const alertOf = (page) => page.getByRole("alert").filter({ visible: true });

export const button = (within, name) => within.getByRole("button", { name, exact: true });
export const toastOf = (page, text) => page.locator("#toasts").getByText(text);
/** The row of a table that has a text. */
export const rowOf = (within, text) => within.locator("tbody tr").filter({ hasText: text });

/** Follows the link of a page in the navigation, which is behind a button on narrow screens. */
export async function follow(page, id) {
  await page.getByRole("banner").waitFor();
  const menu = page.getByRole("button", { name: "Menu" });
  if (await menu.isVisible()) await menu.click();
  await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: PAGES[id], exact: true }).click();
  await heading(page, id).waitFor();
}

/** Waits until nothing is loading, and the text of the page stays the same for a moment except for its digits. */
export async function settled(page) {
  let before = "";
  await eventually(async () => {
    const { text, busy } = await page.evaluate(() => ({
      text: document.body.innerText.replace(/[\d.,\u2013]+/g, "0"),
      busy: document.querySelectorAll("[aria-busy=true]").length,
    }));
    const same = text === before;
    before = text;
    assert.ok(same && busy === 0, "the page is settled");
    assert.ok(!/Loading/.test(text), "the page has loaded");
  });
}

/** Answers the question of a dialog. */
export async function answer(page, yes) {
  await dialogOf(page).getByRole("button", { name: yes, exact: true }).click();
  await dialogOf(page).waitFor({ state: "detached" });
}

/** No cookie, and nothing in any storage of the browser. */
export async function assertNothingStored(page, origin) {
  assert.deepEqual(await page.context().cookies(), [], "no cookies");
  for (const each of page.context().pages()) {
    if (!each.url().startsWith(origin)) continue;
    const stored = await each.evaluate(async () => ({
      cookie: document.cookie,
      local: Object.keys(localStorage),
      session: Object.keys(sessionStorage),
      databases: await indexedDB.databases(),
      caches: await caches.keys(),
      workers: (await navigator.serviceWorker.getRegistrations()).length,
    }));
    assert.deepEqual(stored, { cookie: "", local: [], session: [], databases: [], caches: [], workers: 0 });
  }
}
