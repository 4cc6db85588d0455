// An answer of /api/v1/explain as a picture: the steps of the request, the tiers with the one that would answer, the
// response, and the search for providers. All of it is text in lists and tables, which are drawn by the style.

import { append, h, s } from "./dom.js";
import { bytes, count, duration, plural, sentence, time, wholeDuration } from "./format.js";
import { badge, card, facts, icon, identifier, meter, table } from "./ui.js";
import { NAME_SOURCES } from "./words.js";

const code = (text) => h("code", {}, text);
const note = (text) => h("p", { class: "muted" }, text);

// ---------------------------------------------------------------- What it means

// The explanations of a request and of those that its redirects lead to.
export function chainOf(view) {
  const chain = [];
  for (let at = view; at; at = at.then) chain.push(at);
  return chain;
}

// These formats, and files, need every block below the target; a listing needs the blocks on the path only.
const needsAll = ({ content, format }) => ["file", "raw"].includes(content.kind) || ["car", "tar"].includes(format);

// The state of the network is told for each known root, unless there is no network.
const isOffline = ({ root, network }) => Boolean(root) && !network;
// An identity hash is the data itself: no block is stored.
const isInCid = ({ content, blocks }) => content !== null && content.blocks_here + content.missing_blocks + blocks.length === 0;
const isWithheld = ({ policy }) => Boolean(policy) && policy.verdict !== "allow";

// Whether the gateway belongs to a site, whose shared storage is asked after the disk.
const hasSite = ({ content, blocks }) => Number.isFinite(content?.site_blocks) || blocks.some((block) => block.site !== undefined);

// The tier that the answer would come from: the farthest one that all of it needs. "none" is an answer without blocks.
function tierOf(view) {
  const { route, missing, content, blocks } = view;
  if (isWithheld(view) || (route && route.kind !== "content")) return "none";
  if (missing || (!content && !view.answer)) return "network";
  // A path that leads nowhere, or one that could not be read.
  const areIn = (...names) => blocks.every((block) => names.some((name) => block[name]));
  if (!content) return blocks.length === 0 ? "none" : areIn("ram") ? "ram" : !hasSite(view) || areIn("ram", "disk") ? "disk" : "site";
  if (needsAll(view) && content.missing_blocks > 0) return "network";
  if (isInCid(view)) return "none";
  const hasAll = (number) => !needsAll(view) || number >= content.blocks_here;
  if (areIn("ram") && hasAll(content.ram_blocks)) return "ram";
  return !hasSite(view) || (areIn("ram", "disk") && hasAll(content.disk_blocks)) ? "disk" : "site";
}

const STATUSES = {
  200: "OK", 206: "Partial Content", 301: "Moved Permanently", 302: "Found", 304: "Not Modified", 307: "Temporary Redirect", 308: "Permanent Redirect",
  400: "Bad Request", 403: "Forbidden", 404: "Not Found", 406: "Not Acceptable", 410: "Gone", 412: "Precondition Failed", 415: "Unsupported Media Type",
  422: "Unprocessable Content", 429: "Too Many Requests", 451: "Unavailable For Legal Reasons", 500: "Internal Server Error", 501: "Not Implemented",
  502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
};

const statusText = (status) => `${status}${STATUSES[status] ? ` ${STATUSES[status]}` : ""}`;

// The headline of a picture, and its tone.
export function headlineOf(view) {
  const tier = tierOf(view);
  const { answer, content } = view;
  if (isWithheld(view)) return [`Withheld${answer ? `: answered with ${statusText(answer.status)}` : ""}`, "error"];
  if (answer?.breaks_off) return [`The answer begins with ${statusText(answer.status)}, and breaks off`, "error"];
  if (answer && answer.status >= 400) return [`Answered with ${statusText(answer.status)}`, "warning"];
  if (tier === "ram") return ["Answered from RAM", "ok"];
  if (tier === "disk") return ["Answered from the disk", "ok"];
  if (tier === "site") return ["Answered from the shared storage of the site", "ok"];
  if (isInCid(view)) return ["Answered from the CID: it contains the data", "ok"];
  if (tier === "none") return [`Answered without content${answer ? `: ${statusText(answer.status)}` : ""}`, "info"];
  if (isOffline(view)) return ["Blocks are missing, and this node is offline", "warning"];
  const isStored = content && content.blocks_here > 0;
  return [isStored ? "Answered from here and from the network" : "Would be fetched from the network", "info"];
}

const are = (number) => `${count(number)} ${number === 1 ? "is" : "are"}`;
const atLeast = (content) => (content.counted_all ? "" : "at least ");

// The picture below its headline in a few sentences, also for those who do not see it.
export function summaryOf(view) {
  const { answer, content, missing, network, fetched } = view;
  const parts = [];
  if (answer) parts.push(`The response is ${statusText(answer.status)}${answer.bytes === null ? "" : ` with ${bytes(answer.bytes)}`}.`);
  if (content && !isInCid(view)) {
    const { ram_blocks: ram, disk_blocks: disk, site_blocks: shared, missing_blocks: lacking, pinned_blocks: pinned } = content;
    const places = hasSite(view) ? `, ${count(disk)} on the disk and ${count(shared ?? 0)} in the shared storage` : ` and ${count(disk)} on the disk`;
    parts.push(`Of its blocks, ${are(ram)} in RAM${places}; ${atLeast(content)}${are(lacking)} missing.`);
    parts.push(pinned === 0 ? "None is pinned." : `${are(pinned)} pinned.`);
  }
  if (missing) parts.push("A block on the path is not stored here.");
  if (network?.search) parts.push(`The last search found ${plural(network.search.providers.length + network.search.further, "provider")}.`);
  if (fetched) parts.push(fetched.in_time ? `Fetching took ${duration(fetched.seconds)}.` : `It was not fetched within ${duration(fetched.seconds)}.`);
  return parts.join(" ");
}

// ---------------------------------------------------------------- The picture

// The picture of an explanation: its redirects, and then the last request in full.
export function picture(view) {
  const chain = chainOf(view);
  const last = chain.at(-1);
  const [headline, tone] = headlineOf(last);
  const redirect = ({ path, answer }) => h("li", {}, badge(String(answer.status), "info"), " ", code(path), " leads to ", code(answer.location));
  const redirects = chain.slice(0, -1).map(redirect);
  const title = h("span", { class: `headline ${tone}` }, icon(tone === "ok" ? "ok" : tone === "info" ? "info" : "alert"), h("span", {}, headline));
  return card(title,
    note(summaryOf(last)),
    redirects.length > 0 ? h("ul", { class: "redirects", "aria-label": "Redirects" }, redirects) : null,
    h("ol", { class: "steps", "aria-label": "The steps of the request" }, steps(last)),
    h("ol", { class: `flow ${tierOf(last) === "none" ? "idle" : ""}`, "aria-label": "The tiers, in the order in which they are asked" }, tiers(last)),
    response(last),
    notes(last));
}

function step(title, tone, ...content) {
  return h("li", { class: `step ${tone}` }, h("h3", {}, title), content);
}

function steps(view) {
  const { method, host, path, format, route } = view;
  const asked = step("Request", "", code(`${method} ${host ?? ""}${path}`), format && format !== "native" ? note(`Format ${format}`) : null);
  return [asked, routeStep(route), view.names.map(nameStep), policyStep(view), targetStep(view)];
}

function routeStep(route) {
  if (!route || (route.kind === "content" && !route.error)) return null;
  if (route.kind === "redirect") return step("Route", "info", "Redirect to ", h("code", {}, route.location ?? ""));
  if (route.kind === "landing") return step("Route", "", "The start page of the gateway.");
  return step("Route", "error", route.error ?? "No route.");
}

function nameStep(name) {
  const { value, error, source, age_seconds: age, fresh_for_seconds: fresh, valid_until_at: until } = name;
  const told = [
    NAME_SOURCES[source] ?? source,
    age === null ? null : `${wholeDuration(age)} old`,
    fresh === null ? null : fresh > 0 ? `fresh for ${wholeDuration(fresh)}` : "looked up again at the next request",
    until === null ? null : `valid until ${time(until)}`,
  ];
  const shown = value === null ? h("p", {}, error ?? "It is looked up when it is requested.") : h("p", {}, "→ ", h("code", {}, value));
  return step("Name", error ? "error" : value === null ? "info" : "", code(name.name), shown, note(told.filter((one) => one).join(", ")));
}

const VERDICTS = { allow: "Allowed", gone: "Withheld (410)", legal: "Withheld (451)", unlisted: "Not on an allowlist (403)" };

function policyStep({ policy }) {
  if (!policy) return step("Policy", "quiet", note("Decided when the content is known."));
  const isAllowed = policy.verdict === "allow";
  return step("Policy", isAllowed ? "" : "error",
    badge(VERDICTS[policy.verdict] ?? policy.verdict, isAllowed ? "ok" : "error"),
    policy.refused ? h("p", {}, h("code", {}, policy.refused)) : null,
    policy.decided_by ? note(`By ${policy.decided_by}`) : null);
}

const KINDS = { file: "File", directory: "Directory", symlink: "Symbolic link", raw: "Raw block", document: "IPLD document", other: "Other block" };

function targetStep({ content, root, missing, remembered }) {
  if (!content) return step("Content", "quiet", root ? identifier(root) : null, note(missing ? "A block on the path is missing." : "It was not read."));
  const pinned = content.blocks_here === 0 ? null : content.pinned_blocks > 0 && content.pinned_blocks >= content.blocks_here ? badge("Pinned", "ok")
    : content.pinned_blocks > 0 ? badge("Partly pinned", "info") : badge("Not pinned");
  return step("Content", "",
    h("p", {}, h("b", {}, KINDS[content.kind] ?? content.kind), content.bytes === null ? null : ` of ${bytes(content.bytes)}`, " ", pinned),
    identifier(content.cid),
    remembered ? note(remembered.is_current ? "The path is in the cache." : "The cached path is stale: rules have changed.") : null);
}

// ---------------------------------------------------------------- Tiers

function tiers(view) {
  const answers = tierOf(view);
  const order = ["ram", "disk", ...(hasSite(view) ? ["site"] : []), "network"];
  const reached = order.indexOf(answers);
  const isPartly = view.content?.blocks_here > 0;
  const boxes = order.map((name) => BOXES[name](view));
  return boxes.map(({ name, colour, content }, index) => {
    const isAnswer = index === reached && !(name === "Network" && isOffline(view));
    const state = isAnswer ? "answers" : index < reached ? "passed" : "unused";
    const mark = isAnswer ? badge(name === "Network" && isPartly ? "Answers the rest" : "Answers", "ok") : null;
    return h("li", { class: `stage c${colour} ${state}` }, h("div", { class: "stage-head" }, h("h3", {}, name), mark), content);
  });
}

// How many of the known blocks a tier has.
function amount(part, whole, name, colour, isMore) {
  return [
    h("p", { class: "amount" }, h("b", {}, count(part)), ` of ${isMore ? "at least " : ""}${plural(whole, "block")}`),
    meter(part, whole, `Blocks in ${name}`, `c${colour}`),
  ];
}

const strongly = (text, rest) => h("p", { class: "amount" }, h("b", {}, text), rest);

// The known blocks: below the target, or on the path to it if a block on the path is missing.
function known({ content, blocks, missing }, has, below) {
  if (content) return { part: content[below], whole: content.blocks_here + content.missing_blocks, isMore: !content.counted_all || content.missing_blocks > 0 };
  return { part: blocks.filter(has).length, whole: Math.max(blocks.length, missing ? 1 : 0), isMore: true };
}

const nothing = (view) => strongly(tierOf(view) === "none" ? "Not asked" : "Not known yet");

const onPath = (blocks, has) => (blocks.length === 0 ? null : `Path: ${count(blocks.filter(has).length)} of ${plural(blocks.length, "block")}`);

const about = (...texts) => texts.filter((text) => text).map((text) => note(text));

function ramBox(view) {
  const { part, whole, isMore } = known(view, (block) => block.ram, "ram_blocks");
  const encoded = view.content?.encoded;
  const zstd = !encoded ? null : encoded.compressed ? `Sent as zstd: ${bytes(encoded.ram_bytes)} of it in RAM` : "Sent without compression";
  const texts = about(onPath(view.blocks, (block) => block.ram), zstd);
  return { name: "RAM", colour: 1, content: [whole === 0 ? nothing(view) : amount(part, whole, "RAM", 1, isMore), texts] };
}

function diskBox(view) {
  const { part, whole, isMore } = known(view, (block) => block.disk, "disk_blocks");
  const pinned = view.content?.pinned_blocks ?? view.blocks.filter((block) => block.pinned).length;
  const text = pinned === 0 ? "None is pinned: they may be evicted" : `${plural(pinned, "block")} pinned`;
  const texts = about(onPath(view.blocks, (block) => block.disk), part > 0 ? text : null);
  return { name: "Disk", colour: 3, content: [whole === 0 ? nothing(view) : amount(part, whole, "the disk", 3, isMore), texts] };
}

function siteBox(view) {
  const { part, whole, isMore } = known(view, (block) => block.site, "site_blocks");
  const texts = about(onPath(view.blocks, (block) => block.site));
  return { name: "Site", colour: 4, content: [whole === 0 ? nothing(view) : amount(part ?? 0, whole, "the shared storage", 4, isMore), texts] };
}

const BOXES = { ram: ramBox, disk: diskBox, site: siteBox, network: networkBox };

function networkBox(view) {
  const { content, missing, network, root } = view;
  const lacking = content ? content.missing_blocks : missing ? 1 : 0;
  const head = tierOf(view) === "none" ? strongly("Not asked") : lacking > 0 ? strongly(count(lacking), " or more blocks to fetch")
    : strongly(root ? "Nothing to fetch" : "Looks the name up");
  if (!network) return { name: "Network", colour: 2, content: [head, about(root ? "This node is offline." : null)] };
  const { session, search, remembered_providers: cached } = network;
  const proved = search?.providers.filter((provider) => provider.proved_seconds !== null).length ?? 0;
  return {
    name: "Network",
    colour: 2,
    content: [head, about(
      `${plural(network.peers, "peer")} connected`,
      session ? `Session: ${plural(session.members.length, "member")}, ${plural(session.wanted, "wanted block")}` : "No session",
      search ? `${plural(search.providers.length + search.further, "provider")} found, ${count(proved)} proved to have it` : null,
      cached.length > 0 ? `${plural(cached.length, "cached provider")}` : null)],
  };
}

// ---------------------------------------------------------------- The response

const SHOWN = ["content-type", "cache-control", "etag", "content-encoding", "x-ipfs-path", "x-ipfs-roots", "last-modified"];

function response(view) {
  const { answer, fetched } = view;
  const from = `from-${tierOf(view)}`;
  const spent = fetched ? note(`It was ${fetched.in_time ? "ready after" : "not ready within"} ${duration(fetched.seconds)}.`) : null;
  if (!answer) {
    const unknown = note(isOffline(view) ? "Not known: blocks are missing, and there is no network to fetch them from."
      : "Not known before blocks are fetched: “Fetch and explain” asks the network.");
    return h("div", { class: `response quiet ${from}` }, h("div", { class: "stage-head" }, h("h3", {}, "Response")), unknown, spent);
  }
  const { status, headers, bytes: length, location, problem, breaks_off: broken } = answer;
  const tone = status < 400 && !broken ? "ok" : status < 500 && !broken ? "warning" : "error";
  const rest = Object.entries(headers).filter(([name]) => !SHOWN.includes(name)).map(([name, value]) => [name, code(value)]);
  return h("div", { class: `response ${tone} ${from}` },
    h("div", { class: "stage-head" }, h("h3", {}, "Response"), badge(statusText(status), tone)),
    problem ? h("p", {}, problem) : null,
    broken ? h("p", { class: "notice error" }, `The body breaks off: ${broken}`) : null,
    spent,
    facts([
      length === null ? null : ["Length", bytes(length)],
      location ? ["Location", h("code", {}, location)] : null,
      ...SHOWN.filter((name) => headers[name]).map((name) => [name, h("code", {}, headers[name])]),
    ]),
    rest.length > 0 ? h("details", {}, h("summary", {}, plural(rest.length, "more header")), facts(rest)) : null);
}

function notes(view) {
  const isNew = (text) => text !== view.answer?.problem && !(isOffline(view) && text.includes("fetch=true"));
  const texts = view.notes.filter(isNew).map((text) => text.replace("fetch=true", "“Fetch and explain”"));
  return texts.length > 0 ? h("ul", { class: "notes" }, texts.map((text) => h("li", {}, sentence(text)))) : null;
}

// ---------------------------------------------------------------- Blocks on the path

// The blocks from the root to the target.
export function pathBlocks(view) {
  const last = chainOf(view).at(-1);
  if (last.blocks.length === 0 && !last.missing) return null;
  const list = table("Each block and where it is stored", [
    { title: "Block", cell: ({ cid }) => identifier(cid) },
    { title: "Stored", cell: (block) => places(block) },
    { title: "Form", cell: ({ form }) => form ?? "–", hide: "narrow" },
    { title: "On the disk", cell: ({ stored_bytes: size }) => bytes(size), numeric: true },
  ]);
  const lacking = last.missing && !last.blocks.some(({ cid }) => cid === last.missing);
  list.show([...last.blocks, ...(lacking ? [{ cid: last.missing, form: null, stored_bytes: null }] : [])]);
  return card("Blocks on the path", list);
}

function places({ ram, disk, pinned }) {
  if (!ram && !disk) return badge("Missing", "warning");
  return h("span", { class: "badges" }, ram ? badge("RAM", "info") : null, disk ? badge("Disk", "info") : null, pinned ? badge("Pinned", "ok") : null);
}

// ---------------------------------------------------------------- The network

const ROUTERS = { "dht-wan": "DHT", "dht-lan": "LAN DHT", router: "HTTP router", memory: "cache", caller: "request" };
const routerName = (whom) => ROUTERS[whom] ?? whom;

// The session, and the search for providers on a line of time.
export function networkCard(view) {
  const { network } = chainOf(view).at(-1);
  if (!network) return null;
  const { session, search, remembered_providers: cached } = network;
  if (!session && !search && cached.length === 0) {
    return card("Network", note("It was not asked for this content lately. “Fetch and explain” shows who has it, and how long that takes."));
  }
  return card("Network",
    session ? sessionParts(session) : null,
    search ? searchParts(search) : null,
    cached.length > 0 ? cachedParts(cached) : null);
}

function cachedParts(providers) {
  const items = providers.map(({ peer_id: peer, addresses }) => h("li", {}, identifier(peer), " ", code(addresses[0] ?? "")));
  return [h("h3", {}, "Cached providers"), h("ul", { class: "addresses" }, items)];
}

function sessionParts({ members, asked, answered, wanted, wants, providers, idle_seconds: idle }) {
  const list = table("Members of the session", [
    { title: "Peer", cell: ({ peer_id: peer }) => identifier(peer) },
    { title: "Sent blocks", cell: ({ gave, is_silent: stalled }) => badge(...(stalled ? ["Stalled", "warning"] : gave ? ["Yes", "ok"] : ["Not yet"])) },
    { title: "Outstanding", cell: ({ owes_blocks: number }) => count(number), numeric: true },
    { title: "Response time", cell: ({ response_seconds: seconds }) => duration(seconds), numeric: true },
    { title: "Rate", cell: ({ bytes_per_second: speed }) => (speed === null ? "–" : `${bytes(speed)}/s`), numeric: true, hide: "narrow" },
  ], { key: ({ peer_id: peer }) => peer, empty: "No peer has proved to have the root." });
  list.show(members);
  const waiting = wants.map(({ cid, waited_seconds: waited, debtors, probed, denied }) => h("li", {},
    identifier(cid), ` for ${duration(waited)}: ${plural(debtors.length, "peer")} asked to send it, `,
    `${count(probed)} asked whether they have it, ${count(denied)} do not have it`));
  return [
    h("h3", {}, "Session"),
    note(`${plural(asked, "peer")} asked, ${count(answered)} answered; ${plural(providers, "provider")} from routing; used ${wholeDuration(idle)} ago.`),
    list,
    wanted > 0 ? [h("h3", {}, `Waiting for ${plural(wanted, "block")}`), h("ul", {}, waiting)] : null,
  ];
}

const MARKS = [["c4", "asked"], ["c3", "found"], ["c1", "dial"], ["c5", "failed dial"], ["c2", "proved to have it"]];

function searchParts({ seconds_ago: ago, seconds, asked, providers, further }) {
  const timesOf = (one) => [one.proved_seconds, endOf(one.dial), ...one.named_by.map((by) => by.seconds)];
  const times = [seconds, ...asked.map((one) => one.seconds), ...providers.flatMap(timesOf)].filter((value) => Number.isFinite(value));
  const whole = Math.max(0.001, ...times, seconds === null ? ago : 0);
  const rows = [
    ...asked.map((one) => ({
      who: h("b", {}, routerName(one.whom)),
      what: one.seconds === null ? "No complete answer" : `Answered after ${duration(one.seconds)}`,
      line: timeline({ bar: [0, one.seconds ?? whole], tone: "c4" }, whole),
    })),
    ...providers.map((one) => ({ who: identifier(one.peer_id), what: storyOf(one), line: providerLine(one, whole) })),
  ];
  const list = table("The search for providers", [
    { title: "Asked or found", cell: ({ who }) => who },
    { title: "What happened", cell: ({ what, line }) => [what, line] },
  ], { empty: "No router was asked, and no provider was found." });
  list.show(rows);
  return [
    h("h3", {}, "Search for providers"),
    note(`It began ${wholeDuration(ago)} ago and ${seconds === null ? "is still running" : `took ${duration(seconds)}`}. ` +
      `Each line is ${duration(whole)} long.`),
    list,
    h("ul", { class: "legend" }, MARKS.map(([colour, name]) => h("li", {}, h("i", { class: colour }), name))),
    further > 0 ? note(`${plural(further, "more provider")} found.`) : null,
  ];
}

const endOf = (dial) => (dial ? dial.after_seconds + (dial.seconds ?? 0) : null);

function storyOf({ named_by: named, was_connected: connected, dial, proved_seconds: proved }) {
  const found = named.map(({ whom, seconds }) => `${routerName(whom)} after ${duration(seconds)}`).join(", ");
  const parts = [
    found ? `Found by ${found}` : "Found",
    connected ? "was connected" : dialText(dial),
    proved === null ? null : `proved to have it after ${duration(proved)}`,
  ];
  return parts.filter((part) => part).join("; ");
}

function dialText(dial) {
  if (!dial) return "not dialled";
  if (dial.error) return `cannot be reached: ${dial.error}`;
  return dial.seconds === null ? "being dialled" : `connected in ${duration(dial.seconds)}`;
}

function providerLine({ named_by: named, dial, proved_seconds: proved }, whole) {
  const bar = dial ? [dial.after_seconds, dial.seconds === null ? whole : dial.after_seconds + dial.seconds] : null;
  return timeline({ dots: named.map(({ seconds }) => seconds), bar, tone: dial?.error ? "c5" : "c1", mark: proved }, whole);
}

// A line of time with dots, a bar and a mark. The text above it says the same.
function timeline({ dots = [], bar, tone, mark = null }, whole) {
  const x = (seconds) => `${((100 * Math.min(seconds, whole)) / whole).toFixed(2)}%`;
  const svg = s("svg", { class: "timeline", "aria-hidden": "true" }, s("line", { class: "track", x1: 0, x2: "100%", y1: 10, y2: 10 }));
  // A bar of no length is still seen.
  if (bar) append(svg, s("rect", { class: `fill ${tone}`, x: x(bar[0]), y: 6, width: x(Math.max(bar[1] - bar[0], whole / 200)), height: 8, rx: 2 }));
  for (const dot of dots) append(svg, s("circle", { class: "fill c3", cx: x(dot), cy: 10, r: 4 }));
  if (mark !== null) append(svg, s("svg", { x: x(mark), overflow: "visible" }, s("path", { class: "fill c2", d: "M0 2l6 8-6 8-6-8z" })));
  return svg;
}
