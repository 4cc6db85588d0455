// The console: signing in, the frame with its navigation, and which page is shown.
//
// The part of the URL after # names the page and its filters: #/pins?status=failed. A token may be there as well
// (#token=…, as `causeway console` prints it); it is taken out of the URL and of the browser's history at once.

import { get, setToken, whenUnauthorised } from "./lib/api.js";
import { append, fill, h } from "./lib/dom.js";
import * as live from "./lib/live.js";
import { requestHref } from "./lib/subject.js";
import { badge, clearToasts, closeDialogs, errorNotice, field, form, icon, input, submit } from "./lib/ui.js";
import { STAGES } from "./lib/words.js";
import audit from "./pages/audit.js";
import content from "./pages/content.js";
import denylists from "./pages/denylists.js";
import names from "./pages/names.js";
import overview from "./pages/overview.js";
import peers from "./pages/peers.js";
import pins from "./pages/pins.js";
import requests from "./pages/requests.js";
import settings from "./pages/settings.js";
import store from "./pages/store.js";
import tokens from "./pages/tokens.js";
import uploads from "./pages/uploads.js";

// A page is {id, title, scopes, show(main, context)}: `show` fills the element and returns a function that ends what
// it started, or nothing. It is listed for tokens with one of its scopes. `context` has `token` (the TokenView), `may(scope)`,
// `parameters` (URLSearchParams of the page's filters), `setParameters(object, {push})`, which changes them without showing
// the page again, as a new step of the browser's history if `push` is set, `signal`, an AbortSignal that fires when the
// page is left, and `focusHeading()`, for when what had the focus is gone.
const GROUPS = [
  ["Now", [overview, requests, peers]],
  ["Content", [content, pins, uploads, store, names]],
  ["Control", [denylists, tokens, audit, settings]],
];
const PAGES = GROUPS.flatMap(([, pages]) => pages);
// How often the gateway is asked whether it still accepts the token.
const TOKEN_CHECK_MS = 10_000;

const app = document.getElementById("app");
let leave = () => {};
let isSignedIn = false;

// ---------------------------------------------------------------- Signing in

function takeTokenFromUrl() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return null;
  history.replaceState(null, "", location.pathname);
  return given;
}

async function signIn(token) {
  setToken(token);
  try {
    const view = await get("/api/v1/token");
    isSignedIn = true;
    showFrame(view);
  } catch (error) {
    setToken(null);
    if (error.status === 401) throw new Error("The gateway does not accept this token. Check that all of it was copied, or create a new one.");
    throw error;
  }
}

// Ends all that belongs to the session: nothing of it stays in the page.
function endSession() {
  isSignedIn = false;
  leave();
  leave = () => {};
  live.reset();
  clearToasts();
  setToken(null);
}

function signOut(message) {
  endSession();
  showSignIn(message);
}

function showSignIn(message) {
  document.title = "Sign in – Causeway";
  const token = input({ type: "password", name: "token", autocomplete: "current-password", required: true });
  const action = async () => {
    const value = token.value.trim();
    if (value === "") throw new Error("Enter a token.");
    await signIn(value);
  };
  fill(app,
    h("main", { class: "sign-in" },
      h("img", { src: "/console/icon.svg", alt: "", width: 56, height: 56 }),
      h("h1", {}, "Causeway"),
      h("p", {}, "The console of this gateway. Sign in with a token of its admin API."),
      message ? errorNotice({ message }) : null,
      form(action,
        // Password managers store a password for a user name.
        h("input", { type: "text", name: "username", autocomplete: "username", value: "causeway", class: "hidden", tabindex: "-1", "aria-hidden": "true" }),
        field("Token", token),
        submit("Sign in")),
      h("p", { class: "muted" }, "On the gateway's machine, ", h("code", {}, "causeway console"), " prints a link that signs in, and ",
        h("code", {}, "causeway token create"), " creates a token.")));
  token.focus();
}

// ---------------------------------------------------------------- The frame

function allowed(token) {
  // Some operations need the operator's own token.
  const may = (scope) => (scope === "operator" ? token.id === "operator" : token.scopes.includes(scope));
  return { may, pages: PAGES.filter((page) => page.scopes.some(may)) };
}

function showFrame(token) {
  const { may, pages } = allowed(token);
  const state = badge("…");
  const silence = "The gateway does not answer. This page tries again every two seconds.";
  const connection = h("p", { class: "notice error", role: "alert", hidden: true }, silence);
  const links = pages.map((page) => h("a", { href: `#/${page.id}`, "data-page": page.id }, icon(page.id), page.title));
  const groups = GROUPS.map(([title, members]) => [title, links.filter((link) => members.some(({ id }) => id === link.dataset.page))]);
  const nav = h("nav", { id: "nav", "aria-label": "Pages" },
    groups.filter(([, members]) => members.length > 0).map(([title, members]) => h("div", { class: "nav-group" }, h("p", {}, title), members)));
  const toggle = h("button", { type: "button", class: "bare menu", "aria-label": "Menu", "aria-expanded": "false", "aria-controls": "nav" }, icon("menu"));
  const setOpen = (open) => {
    nav.classList.toggle("open", open);
    toggle.setAttribute("aria-expanded", String(open));
  };
  toggle.addEventListener("click", () => setOpen(!nav.classList.contains("open")));
  nav.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape" || !nav.classList.contains("open")) return;
    setOpen(false);
    toggle.focus();
  });
  const main = h("main", { id: "main" });
  const signOutButton = h("button", { type: "button", class: "bare", "aria-label": "Sign out", onclick: () => signOut() },
    icon("out"), h("span", {}, "Sign out"));
  const skip = h("a", { href: "#main", class: "skip" }, "Skip to the content");
  skip.addEventListener("click", (event) => {
    event.preventDefault();
    main.querySelector("h1")?.focus();
  });
  fill(app,
    skip,
    h("header", { class: "top" },
      toggle,
      h("a", { class: "brand", href: `#/${pages[0]?.id ?? ""}` }, h("img", { src: "/console/icon.svg", alt: "", width: 28, height: 28 }), "Causeway"),
      state,
      h("span", { class: "spacer" }),
      pages.includes(content) ? finder() : null,
      h("span", { class: "muted who", title: "The token of this session" }, token.name ?? ""),
      signOutButton),
    h("div", { class: "frame" }, nav, h("div", { class: "page" }, connection, main)));

  const unsubscribe = may("read") ? live.subscribe((stats, connected) => {
    connection.hidden = connected;
    const [text, tone] = connected ? STAGES[stats.stage] ?? [stats.stage, "warning"] : ["No answer", "error"];
    if (state.textContent !== text) {
      state.textContent = text;
      state.className = `badge ${tone}`;
    }
  }) : () => {};
  state.hidden = !may("read");

  // A stream of events goes on after its token was revoked, and pages read nothing while a dialog is open. An answer that rejects
  // the token signs out; other errors are told where they matter.
  const askAgain = () => document.hidden || get("/api/v1/token").catch(() => {});
  const checks = setInterval(askAgain, TOKEN_CHECK_MS);

  let ended = () => {};
  const route = () => {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const page = pages.find(({ id }) => id === path) ?? pages[0];
    ended();
    setOpen(false);
    for (const link of links) {
      if (link.dataset.page === page?.id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (!page) {
      fill(main, h("h1", {}, "Nothing to show"), h("p", {}, "This token has no scope that a page needs. Sign in with another token."));
      return;
    }
    document.title = `${page.title} – Causeway`;
    ended = showPage(page, main, { token, may, query });
  };
  window.addEventListener("hashchange", route);
  leave = () => {
    ended();
    unsubscribe();
    clearInterval(checks);
    window.removeEventListener("hashchange", route);
  };
  route();
}

// A field in the frame that leads to the page of a piece of content.
function finder() {
  const what = input({ type: "search", "aria-label": "Explain a CID, path, URL or domain", placeholder: "CID, path or domain" });
  const find = (event) => {
    event.preventDefault();
    if (what.value.trim() === "") return;
    const href = requestHref(what.value.trim());
    what.value = "";
    // The same again is asked anew.
    if (location.hash === href) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = href;
  };
  return h("form", { class: "finder", role: "search", onsubmit: find }, icon("search"), what);
}

function showPage(page, main, { token, may, query }) {
  const controller = new AbortController();
  const parameters = new URLSearchParams(query ?? "");
  const setParameters = (values, { push = false } = {}) => {
    for (const [name, value] of Object.entries(values)) {
      if (value === "" || value === null || value === undefined) parameters.delete(name);
      else parameters.set(name, value);
    }
    const text = parameters.toString();
    const url = `#/${page.id}${text ? `?${text}` : ""}`;
    if (push) history.pushState(null, "", url);
    else history.replaceState(null, "", url);
  };
  const focusHeading = () => controller.signal.aborted || main.querySelector("h1")?.focus({ preventScroll: true });
  fill(main);
  window.scrollTo(0, 0);
  let end;
  try {
    end = page.show(main, { token, may, parameters, setParameters, focusHeading, signal: controller.signal });
  } catch (error) {
    append(main, errorNotice(error));
  }
  focusHeading();
  return () => {
    controller.abort();
    closeDialogs();
    end?.();
  };
}

// ---------------------------------------------------------------- Start

whenUnauthorised(() => {
  if (isSignedIn) signOut("The gateway no longer accepts this token: it was revoked or has expired.");
});

async function start() {
  const token = takeTokenFromUrl();
  if (token === null) {
    showSignIn();
    return;
  }
  try {
    await signIn(token);
  } catch (error) {
    showSignIn(error.message);
  }
}

// A link with a token that is opened in this tab again signs in anew.
window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) {
    endSession();
    start();
  }
});

start();
