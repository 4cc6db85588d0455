// Accessibility: the rules of axe-core, and that everything can be done with the keyboard.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";

let source;

/** Reads axe-core, which is injected by the debugger; the policy of the page forbids all other scripts. */
export async function loadAxe(modules) {
  source = await readFile(join(modules, "node_modules/axe-core/axe.min.js"), "utf8");
}

/** Asserts that what the page shows violates no rule of axe-core, of WCAG 2.2 AA or of its best practices. */
export async function assertAccessible(page, what) {
  // By the debugger's protocol: the page itself may not evaluate texts.
  const session = await page.context().newCDPSession(page);
  const evaluate = async (expression) => {
    const parameters = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await session.send("Runtime.evaluate", parameters);
    if (exceptionDetails) throw new Error(`axe-core: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  };
  try {
    if (!(await evaluate("typeof axe === 'object'"))) await evaluate(`${source};true`);
    const found = await evaluate(`axe.run(document, { preload: false, resultTypes: ["violations"] }).then(({ violations }) =>
      violations.map(({ id, help, nodes }) => id + ": " + help + "\\n" + nodes.slice(0, 3).map((node) =>
        "  " + node.target.join(" ") + "\\n  " + node.html.slice(0, 200) + "\\n  " + node.failureSummary).join("\\n")))`);
    assert.deepEqual(found, [], `${what} is accessible`);
  } finally {
    await session.detach();
  }
}

/** What can have the focus, as the page has it now. Of radio buttons of one group, one is in the order of Tab. */
function focusable() {
  const selector = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  const seen = new Set();
  return [...document.querySelectorAll(selector)].filter((element) => {
    if (element.disabled || element.tabIndex < 0 || !element.checkVisibility({ visibilityProperty: true })) return false;
    const dialog = document.querySelector("dialog[open]");
    if (dialog && !dialog.contains(element)) return false;
    if (element.type !== "radio") return true;
    if (seen.has(element.name)) return false;
    return seen.add(element.name);
  });
}

const labelOf = `(element) => (element.getAttribute("aria-label") || element.innerText || element.name || element.type
  || element.tagName).trim().slice(0, 60)`;

/**
 * Presses Tab through everything, and asserts that all that can be used is reached, each with a visible mark of the
 * focus, and that nothing holds it. Returns the labels in their order.
 */
export async function assertTabReachesAll(page, what) {
  const session = await page.context().newCDPSession(page);
  const evaluate = async (expression) => {
    const { result, exceptionDetails } = await session.send("Runtime.evaluate", { expression, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  };
  const reached = [];
  try {
    const count = await evaluate(`(() => {
      window.tabs = { reached: new Set(), unmarked: [], all: (${focusable})() };
      document.activeElement?.blur();
      return tabs.all.length;
    })()`);
    // Figures run while this goes on: rows come, and more is reached.
    for (let presses = 0; presses < 2 * count + 20; presses += 1) {
      await page.keyboard.press("Tab");
      const label = await evaluate(`(() => {
        const element = document.activeElement;
        if (!element || element === document.body) return null;
        if (tabs.reached.has(element)) return "";
        tabs.reached.add(element);
        const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(element);
        const native = ["checkbox", "radio", "file"].includes(element.type);
        if (outlineStyle === "none" && boxShadow === "none" && !native) tabs.unmarked.push((${labelOf})(element));
        return (${labelOf})(element);
      })()`);
      if (label) reached.push(label);
      if (label === null && reached.length >= count) break;
      if (label === "" && reached.length > 1) break;
    }
    const missed = await evaluate(`(() => {
      const missed = tabs.all.filter((element) => element.isConnected && !tabs.reached.has(element)
        && element.checkVisibility());
      const found = { missed: missed.map(${labelOf}), unmarked: tabs.unmarked };
      delete window.tabs;
      return found;
    })()`);
    assert.deepEqual(missed, { missed: [], unmarked: [] }, `Tab reaches everything of ${what}; it reached ${reached.join(", ")}`);
    return reached;
  } finally {
    await session.detach();
  }
}
