// Headless Chromium, as a desktop or a phone, and checks of every page.

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";

const VIEWS = {
  desktop: { viewport: { width: 1280, height: 800 } },
  phone: { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true },
};
export const VIEW_NAMES = Object.keys(VIEWS);
const TIMEOUT_MS = 15_000;

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // Only this machine is reachable. example.com is a gateway's host in the configuration under test, and the hosts
  // below example.org have DNSLinks.
  "--host-resolver-rules=MAP example.com 127.0.0.1,MAP *.example.com 127.0.0.1,MAP *.example.org 127.0.0.1," +
    "MAP * ~NOTFOUND,EXCLUDE 127.0.0.1,EXCLUDE localhost,EXCLUDE *.localhost",
];

export class Browser {
  #browser;
  #screenshots;

  /**
   * Playwright starts it with a fresh profile, which it deletes afterwards. Certificates for the key with the hash
   * `trustedKey` are trusted.
   */
  static async launch({ playwright, executable, screenshots, trustedKey, quic = false, flags = [] }) {
    const browser = new Browser();
    const trust = `--ignore-certificate-errors-spki-list=${trustedKey}`;
    const args = [...FLAGS.filter((flag) => !quic || flag !== "--disable-quic"), trust, ...flags];
    browser.#browser = await playwright.chromium.launch({ executablePath: executable, args });
    browser.#screenshots = screenshots;
    await mkdir(screenshots, { recursive: true });
    return browser;
  }

  close() {
    return this.#browser.close();
  }

  /**
   * Runs `use` with an isolated page, and afterwards asserts that the page had no failed request
   * and no script error, unless `failures` are expected.
   */
  async page(use, { view = "desktop", dark = false, failures = false } = {}) {
    const options = { ...VIEWS[view], colorScheme: dark ? "dark" : "light" };
    const context = await this.#browser.newContext(options);
    const seen = [];
    context.on("weberror", (error) => seen.push(`script error: ${error.error()}`));
    context.on("console", (message) => {
      // Browsers request /favicon.ico by themselves.
      if (message.type() !== "error" || message.location().url.endsWith("/favicon.ico")) return;
      seen.push(`console: ${message.text()} (${message.location().url})`);
    });
    context.on("requestfailed", (request) => {
      // Requests aborted by a navigation or a download are not failures.
      const reason = request.failure()?.errorText;
      if (reason !== "net::ERR_ABORTED") seen.push(`${request.url()}: ${reason}`);
    });
    try {
      const page = await context.newPage();
      page.setDefaultTimeout(TIMEOUT_MS);
      const result = await use(page);
      if (!failures) assert.deepEqual(seen, [], "the page is without failures");
      return result;
    } finally {
      await context.close();
    }
  }

  /** Saves a screenshot, of the whole page unless it is very long. */
  async picture(page, name, { fullPage = true } = {}) {
    await page.screenshot({ path: join(this.#screenshots, `${name}.png`), fullPage });
  }
}

/** Opens a URL, and checks its status. */
export async function open(page, url, status = 200) {
  const response = await page.goto(url);
  assert.equal(response.status(), status, `${url} is answered with ${status}`);
  return response;
}

/** Every page of the gateway has an icon, so that browsers do not request a missing one. */
export async function assertIcon(page) {
  assert.equal(await page.locator("head link[rel~=icon]").count(), 1, "the page declares its icon");
}

/** Readability of a page: it fits, its text is large enough and has enough contrast, and it has a title. */
export async function assertReadable(page, what = page.url()) {
  const found = await page.evaluate(measure);
  assert.ok(found.title.length > 0, `the page has a title: ${what}`);
  assert.ok(found.text.length > 0, `the page says something: ${what}`);
  const { scrollWidth, width, wide } = found;
  assert.ok(scrollWidth <= width, `nothing to scroll sideways: ${scrollWidth} > ${width}: ${what}\n${wide.join("\n")}`);
  assert.deepEqual(found.outside, [], `no text beyond the edges of the view: ${what}`);
  assert.deepEqual(found.small, [], `no letters smaller than 12 px: ${what}`);
  assert.deepEqual(found.faint, [], `a contrast of 4.5:1 everywhere (WCAG 2.2, 1.4.3): ${what}`);
}

/** Runs in the page. */
function measure() {
  const number = (text) => Number.parseFloat(text);
  // Every notation of a colour, as the browser itself reads it.
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => value * a + below[i] * (1 - a));
  const luminance = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, two) => {
    const [light, dark] = [luminance(one), luminance(two)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  // The canvas colour, which a dark page leaves to the browser.
  const probe = document.createElement("div");
  probe.style.color = "Canvas";
  document.body.append(probe);
  const paper = rgba(getComputedStyle(probe).color).slice(0, 3);
  probe.remove();
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reduceRight((below, layer) => over(layer, below), paper);
  };
  const opacity = (element) => {
    let share = 1;
    for (let at = element; at; at = at.parentElement) share *= number(getComputedStyle(at).opacity);
    return share;
  };

  const found = { small: [], faint: [], outside: [] };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode() && found.faint.length < 5 && found.outside.length < 5) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !/[\p{L}\p{N}]/u.test(text) || !element.checkVisibility()) continue;
    // What is disabled needs no contrast (WCAG 2.2, 1.4.3).
    if (["SCRIPT", "STYLE"].includes(element.tagName) || element.closest(":disabled")) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const [r, g, b, a] = rgba(style.color);
    const ratio = contrast(over([r, g, b, a * opacity(element)], below), below);
    if (number(style.fontSize) < 12) found.small.push(`${style.fontSize}: ${text.slice(0, 40)}`);
    if (ratio < 4.5) found.faint.push(`${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
    const scrolls = element.closest("pre, table, [tabindex]");
    const box = element.getBoundingClientRect();
    // What is wholly left of the view comes into it with the focus.
    const isOutside = box.right > document.documentElement.clientWidth + 1 || (box.left < -1 && box.right > 0);
    if (!scrolls && isOutside) found.outside.push(text.slice(0, 40));
  }
  const root = document.documentElement;
  const text = document.body.innerText.trim();
  // The innermost elements that make the page too wide.
  const isWide = (element) => element.getBoundingClientRect().right > root.clientWidth + 1
    && !element.closest("pre, table, [tabindex]");
  const all = root.scrollWidth > root.clientWidth ? [...document.body.querySelectorAll("*")] : [];
  found.wide = all.filter((element) => isWide(element) && ![...element.children].some(isWide)).slice(0, 5)
    .map((element) => element.outerHTML.slice(0, 160));
  return { ...found, title: document.title, text, scrollWidth: root.scrollWidth, width: root.clientWidth };
}
