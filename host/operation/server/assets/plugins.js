// The plugins: versions, reloads, shadows beside the live chain, and the steps that an operator can take.

import { change, get, unlock } from "./api.js";
import { fill, h, keyed, row, setBadge, setText, table } from "./dom.js";
import { bytes, clock, count, counts, digest, duration, plural, seconds, short, NONE } from "./format.js";
import { requestPath } from "./requests.js";

const REFRESH_MS = 2000;
const STATES = { live: ["good", "live"], shadow: ["off", "shadow"], down: ["bad", "down"], quarantined: ["bad", "quarantined"] };

const RELOAD_HEADS = ["When", "From", "To", "Version", { text: "Outcome", long: true }];
const DIFFERENCE_HEADS = ["When", "Request", { text: "Frame", number: true }, { text: "Live", long: true }, { text: "Shadow", long: true }];

export function pluginState(plugin) {
  if (plugin.not_ready) return ["bad", "says not ready"];
  return STATES[plugin.state] ?? ["warn", String(plugin.state)];
}

export class PluginsView {
  title = "Plugins";

  constructor() {
    this.last = h("p", { class: "dim" });
    this.empty = h("p", { class: "empty" }, "Reading…");
    this.list = h("div");
    this.cards = new WeakMap();
    this.node = h("div", null, h("div", { class: "title" }, h("h1", null, "Plugins")), this.last, this.empty, this.list);
    this.load();
    this.timer = setInterval(() => {
      if (!document.hidden && !this.asking) this.load();
    }, REFRESH_MS);
  }

  leave() {
    clearInterval(this.timer);
    this.asking?.abort();
  }

  async load() {
    this.asking = new AbortController();
    try {
      this.show(await get("/v1/plugins", this.asking.signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.empty.hidden = false;
      setText(this.empty, `The plugins could not be read: ${error.message}`);
    } finally {
      this.asking = null;
    }
  }

  show({ plugins, last_reload: last, differences_refused: refused }) {
    this.empty.hidden = plugins.length > 0;
    if (!plugins.length) {
      setText(this.empty, "No plugin is configured: every row passes as it is. `afterbay plugin new NAME` makes one; a [[stream.plugin]] of the configuration puts it into the chain.");
    }
    setText(this.last, last ? `Last reload of the configuration ${duration(last.ago_s)} ago: ${last.refused.length ? `refused, ${last.refused.join("; ")}` : last.changed.join("; ")}` : "");
    keyed(this.list, plugins, (plugin) => `${plugin.stream} ${plugin.plugin}`, (plugin) => this.made(plugin), (node, plugin) => this.cards.get(node).update(plugin, refused));
  }

  made(plugin) {
    const card = new Card(plugin, () => this.load());
    this.cards.set(card.node, card);
    return card.node;
  }
}

class Card {
  constructor({ stream, plugin }, reload) {
    this.reload = reload;
    this.names = { stream, plugin };
    this.state = h("span");
    this.why = h("p", { class: "notice bad", hidden: true });
    this.facts = h("dl", { class: "facts" });
    this.said = h("span", { role: "status" });
    this.promote = h("button", { type: "button", on: { click: () => this.step("promote", "is live") } }, `Promote ${plugin}`);
    this.reinstate = h("button", { type: "button", on: { click: () => this.step("reinstate", "is back in the chain") } }, `Reinstate ${plugin}`);
    this.reloads = table(`Reloads of ${plugin}`, RELOAD_HEADS, { hidden: false });
    this.differences = table(`Rows on which ${plugin} differs from the live chain`, DIFFERENCE_HEADS, { hidden: false });
    this.none = h("p", { class: "dim" });
    this.unlock = h("button", { type: "button", hidden: true, on: { click: async () => (await unlock()) && this.reload() } }, `Show the rows of ${plugin}`);
    this.node = h(
      "section",
      { class: "panel plugin", "aria-label": `${plugin} of stream ${stream}` },
      h("div", { class: "title" }, h("h2", null, plugin), this.state, h("span", { class: "dim" }, `stream ${stream}`)),
      this.why,
      this.facts,
      h("p", { class: "buttons" }, this.promote, this.reinstate, this.said),
      this.reloads.node,
      this.differences.node,
      this.none,
      this.unlock,
    );
  }

  update(plugin, refused) {
    setBadge(this.state, ...pluginState(plugin));
    const why = plugin.not_ready ?? plugin.why;
    this.why.hidden = !why;
    setText(this.why, why ?? "");
    this.promote.hidden = plugin.state !== "shadow";
    this.reinstate.hidden = plugin.state !== "quarantined";
    keyed(this.facts, factsOf(plugin), ([label]) => label, ([label]) => h("div", null, h("dt", null, label), h("dd")), (item, [, text, title]) => {
      setText(item.children[1], text);
      if (title) item.children[1].title = title;
    });
    const reloads = plugin.reloads ?? [];
    this.reloads.node.hidden = reloads.length === 0;
    keyed(this.reloads.body, newestFirst(reloads), (of) => `${of.time} ${of.to_digest}`, () => row(RELOAD_HEADS), (tr, of) => {
      fill(tr, [clock(of.time), digest(of.from_digest), digest(of.to_digest), of.version ?? NONE, tr.children[4].firstChild ?? ""]);
      setBadge(tr.children[4], of.refused ? "bad" : "good", of.refused ? `refused: ${of.refused}` : "took over");
    });
    const differences = plugin.differences ?? [];
    this.differences.node.hidden = differences.length === 0;
    keyed(this.differences.body, newestFirst(differences), (of) => `${of.time} ${of.rid} ${of.frame}`, (of) => {
      const tr = row(DIFFERENCE_HEADS);
      tr.children[1].append(h("a", { class: "rid", href: `${requestPath(of.rid)}?frame=${of.frame}` }, of.rid));
      return tr;
    }, (tr, of) => {
      fill(tr, [clock(of.time), tr.children[1].firstChild, count(of.frame), side(of.live), side(of.shadow)]);
    });
    this.none.hidden = plugin.state !== "shadow" || differences.length > 0;
    setText(this.none, refused ? `The rows on which the shadow differs are not shown: ${refused}` : `On ${plural(plugin.rows, "row")} the shadow did what the live chain does.`);
    // Without a token file there is no token to give.
    this.unlock.hidden = this.none.hidden || !refused?.includes("admin.token_file");
  }

  async step(step, done) {
    const { stream, plugin } = this.names;
    try {
      const changed = await change(`/v1/plugins/${encodeURIComponent(plugin)}/${step}`, { stream });
      setText(this.said, changed ? `${plugin} ${done}.` : "Nothing was changed.");
    } catch (error) {
      setText(this.said, `Refused: ${error.message}`);
    }
    this.reload();
  }
}

function newestFirst(each) {
  return [...each].sort((a, b) => Date.parse(b.time) - Date.parse(a.time));
}

// One side of a difference: a text as it is, anything else as JSON.
function side(value) {
  return value === null || value === undefined ? NONE : typeof value === "string" ? value : JSON.stringify(value);
}

function factsOf(plugin) {
  const { last_reload: last } = plugin;
  return [
    ["component", `${plugin.component} ${plugin.version}`],
    ["source", plugin.source],
    ["digest", digest(plugin.digest), plugin.digest],
    ...(plugin.next_digest ? [["next version", `${digest(plugin.next_digest)}, catching up`]] : []),
    ["cost a row", plugin.ns_per_row === null ? NONE : seconds(plugin.ns_per_row / 1e9)],
    ["rows", short(plugin.rows)],
    ["verdicts", counts(plugin.verdicts)],
    ["faults", counts(plugin.faults)],
    ["on a fault", plugin.on_fault],
    ["deadline", seconds(plugin.deadline_us / 1e6)],
    ["memory", `${bytes(plugin.memory_bytes)} of ${bytes(plugin.memory_max_bytes)}`],
    ["open requests", count(plugin.requests_open)],
    ...(last ? [["last reload", `${duration(last.ago_s)} ago${last.refused ? `, refused: ${last.refused}` : ""}`]] : []),
  ];
}
