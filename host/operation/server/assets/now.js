// The view of this moment: readiness, and for each stream its figures, charts, sinks, plugins, ledger and journal.

import { Chart } from "./chart.js";
import { h, keyed, row, setBadge, setClass, setText, table } from "./dom.js";
import { bytes, clock, count, counts, duration, percent, plural, rate, seconds, short, NONE } from "./format.js";
import { WINDOWS } from "./history.js";
import { pluginState } from "./plugins.js";

const SINK_STATES = { keeping_up: ["good", "keeping up"], behind: ["warn", "behind"], stalled: ["bad", "stalled"], away: ["off", "away"] };

export class NowView {
  title = "Now";

  constructor(known) {
    this.known = known;
    this.ready = h("span");
    this.conditions = h("ul", { class: "conditions" });
    this.streams = h("div");
    this.copies = table("Copies of the journal", COPY_HEADS, { hidden: false, name: "copies" });
    this.empty = h("p", { class: "empty" }, "Waiting for the first status…");
    this.node = h(
      "div",
      null,
      h("div", { class: "title" }, h("h1", null, "Now"), this.ready, this.window()),
      this.conditions,
      this.empty,
      this.streams,
      this.copies.node,
    );
    this.panels = new WeakMap();
  }

  // The choice of the time that the charts show.
  window() {
    const { history } = this.known;
    const select = h("select", { id: "window" }, WINDOWS.map(({ name }) => h("option", { value: name }, name)));
    select.value = history.window.name;
    select.addEventListener("change", () => {
      history.show(WINDOWS.find(({ name }) => name === select.value));
      if (this.known.status) history.follow(this.known.status).then(() => this.draw());
    });
    return h("label", { class: "window" }, "Charts of the last ", select);
  }

  // Draws the charts, each time that a point has moved by about a pixel.
  draw() {
    const { history } = this.known;
    if (this.drawn === history.window && history.end < this.drawnEnd + history.window.every) return;
    [this.drawn, this.drawnEnd] = [history.window, history.end];
    for (const node of this.streams.children) this.panels.get(node).draw(history);
  }

  lost(why) {
    setText(this.empty, `No status has arrived: ${why || "the server does not answer"}. The page tries again by itself.`);
  }

  update(status) {
    const { ready, conditions, streams, plugins, copies = [] } = status;
    if (ready) setBadge(this.ready, conditions.length ? "warn" : "good", conditions.length ? "ready, degraded" : "ready");
    else setBadge(this.ready, "bad", "not ready");
    keyed(this.conditions, conditions, (of) => `${of.key ?? of.text} ${of.since}`, () => h("li", null, h("span"), h("span"), h("span", { class: "dim" })), (li, of) => {
      const stops = of.severity === "not_ready";
      setBadge(li.children[0], stops ? "bad" : "warn", `${stops ? "not ready" : "degraded"}: ${of.condition.replaceAll("_", " ")}`);
      setText(li.children[1], of.text);
      setText(li.children[2], `since ${clock(of.since)}`);
    });
    this.empty.hidden = streams.length > 0;
    if (!streams.length) setText(this.empty, "No stream runs. Add a [[stream]] to the configuration, then run `afterbay reload`.");
    keyed(this.streams, streams, (stream) => stream.name, (stream) => this.made(stream), (node, stream) => {
      const own = (plugins ?? []).filter((plugin) => plugin.stream === stream.name);
      this.panels.get(node).update(stream, own);
    });
    // A stream that came is drawn at once.
    const shown = streams.map(({ name }) => name).join("\n");
    if (shown !== this.shown) this.drawn = null;
    this.shown = shown;
    this.draw();
    this.copies.node.hidden = copies.length === 0;
    keyed(this.copies.body, copies, (copy) => copy.copy, () => row(COPY_HEADS), copyRow);
  }

  made(stream) {
    const panel = new StreamPanel(stream.name);
    this.panels.set(panel.node, panel);
    return panel.node;
  }
}

const COPY_STATES = { working: "good", failing: "bad" };
const COPY_HEADS = ["Copy", "State", { text: "Lag", title: "Age of the oldest data that the copy lacks", number: true }, { text: "To", long: true }, { text: "Error", long: true }];

function copyRow(tr, copy) {
  setText(tr.children[0], copy.copy);
  setBadge(tr.children[1], COPY_STATES[copy.state] ?? "warn", String(copy.state));
  setText(tr.children[2], duration(copy.lag_seconds));
  setText(tr.children[3], copy.to);
  setText(tr.children[4], copy.error ?? NONE);
}

// The causes of ends that should not happen.
const FAILURES = new Set(["watchdog", "fault", "engine_error", "lost"]);

class StreamPanel {
  constructor(name) {
    this.name = name;
    this.state = h("span");
    this.requests = h("span", { class: "dim" });
    this.figures = Object.fromEntries(FIGURES.map(([key]) => [key, { value: h("dd"), note: h("dd", { class: "note" }) }]));
    this.tokens = new Chart("Tokens a second", [{ name: "in", of: ["tokens_received"] }, { name: "out", of: ["tokens_forwarded"] }], rate);
    this.lag = new Chart("First-token lag", [{ name: "p99", of: ["first_token_p99"] }, { name: "p50", of: ["first_token_p50"] }], seconds);
    this.backlog = new Chart("Backlog, tokens", [], short);
    this.load = new Chart("Requests", [], count);
    this.sinkNames = null;
    this.sinks = table("Sinks", SINK_HEADS, { hidden: false });
    this.plugins = table("Plugins", PLUGIN_HEADS, { hidden: false });
    this.noPlugins = h("p", { class: "empty" }, "No plugin: every row passes as it is. ", h("code", null, "afterbay plugin new NAME"), " makes one.");
    this.ends = h("dl", { class: "facts" });
    this.ended = h("div", { class: "ended" }, h("h3", null, "Ends"), this.ends);
    this.ledger = h("dl", { class: "facts" });
    this.journal = h("dl", { class: "facts" });
    this.meter = h("meter", { min: "0", max: "1", high: "0.8", "aria-label": "Journal, of its bound" });
    this.node = h(
      "section",
      { class: "panel", "aria-label": `Stream ${name}` },
      h("div", { class: "title" }, h("h2", null, name), this.state, this.requests),
      h("dl", { class: "figures" }, FIGURES.map(([key, label]) => h("div", null, h("dt", null, label), this.figures[key].value, this.figures[key].note))),
      h("div", { class: "charts" }, this.tokens.node, this.lag.node, this.backlog.node, this.load.node),
      this.sinks.node,
      this.plugins.node,
      this.noPlugins,
      this.ended,
      h("div", { class: "pair" }, h("div", null, h("h3", null, "Ledger"), this.ledger), h("div", null, h("h3", null, "Journal"), this.meter, this.journal)),
    );
  }

  update(stream, plugins) {
    setBadge(this.state, ...streamState(stream));
    setText(this.requests, `${plural(stream.requests_live, "request")} live, ${plural(stream.senders, "scheduler connection")}`);
    for (const [key, , of] of FIGURES) {
      const [value, note = "", kind = ""] = of(stream);
      setText(this.figures[key].value, value);
      setText(this.figures[key].note, note);
      setClass(this.figures[key].note, `note ${kind}`);
    }
    this.series(stream);
    keyed(this.sinks.body, stream.sinks, (sink) => sink.name, () => row(SINK_HEADS), sinkRow);
    this.plugins.node.hidden = plugins.length === 0;
    this.noPlugins.hidden = plugins.length > 0;
    keyed(this.plugins.body, plugins, (plugin) => plugin.plugin, () => row(PLUGIN_HEADS), pluginRow);
    const ends = Object.entries(stream.requests_ended);
    facts(this.ends, ends.map(([cause, number]) => [cause.replaceAll("_", " "), count(number), FAILURES.has(cause) ? "bad" : ""]));
    this.ended.hidden = ends.length === 0;
    facts(this.ledger, ledgerFacts(stream.ledger));
    facts(this.journal, journalFacts(stream.journal));
    const { bytes: size, bytes_max: max } = stream.journal;
    this.meter.hidden = !max;
    if (max) this.meter.value = size / max;
  }

  // The lines of the charts that depend on what the stream has.
  series(stream) {
    const names = stream.sinks.map((sink) => sink.name);
    const shown = `${names.join("\n")}${stream.load ? "+" : ""}`;
    if (shown === this.sinkNames) return;
    this.sinkNames = shown;
    const of = (name) => `waiting_tokens/${name}`;
    // Colours of more lines cannot be told apart.
    const lines = names.slice(0, 4).map((name) => ({ name, of: [of(name)] }));
    this.backlog.set(names.length > 4 ? [{ name: `all ${names.length} sinks`, of: names.map(of) }] : lines);
    const live = { name: "live", of: ["requests_live"] };
    const load = [{ name: "running", of: ["running"] }, { name: "waiting", of: ["waiting"] }];
    this.load.set(stream.load ? load : [live]);
  }

  draw(history) {
    for (const chart of [this.tokens, this.lag, this.backlog, this.load]) chart.update(history, this.name);
  }
}

function streamState(stream) {
  if (stream.journal.failing) return ["bad", "journal fails"];
  if (!stream.receiving) return ["bad", "not receiving"];
  return stream.senders ? ["good", "receiving"] : ["off", "no scheduler connected"];
}

// Each figure: a key, a label, and its value, note and kind.
const FIGURES = [
  ["in", "Tokens in", ({ rates }) => [`${rate(rates.tokens_received)} /s`, `${rate(rates.rows_received)} rows/s, ${rate(rates.frames_received)} frames/s`]],
  ["out", "Tokens out", ({ rates }) => [`${rate(rates.tokens_forwarded)} /s`, rates.tokens_received > 0 ? `${percent(rates.tokens_forwarded / rates.tokens_received)} of in` : "nothing comes in"]],
  ["lag", "First-token lag, p99", ({ first_token_seconds: lag, first_token_until: until }) => (lag ? [seconds(lag.p99), `p50 ${seconds(lag.p50)}, until ${until}`] : [NONE, `no first token ${until} in 10 s`])],
  ["frame", "Frame lag, p99", ({ frame_seconds: lag }) => (lag ? [seconds(lag.p99), `p50 ${seconds(lag.p50)}`] : [NONE, "no frame in 10 s"])],
  ["joined", "Rows joined", ({ rates, sinks }) => [`${rate(rates.rows_joined)} /s`, `${short(sinks.reduce((sum, sink) => sum + (sink.rows_joined ?? 0), 0))} in all`]],
  ["load", "Scheduler", ({ load }) => schedulerFigure(load)],
];

function schedulerFigure(load) {
  if (!load) return [NONE, "no load signal configured"];
  const value = `${count(load.running)} running`;
  const note = `${count(load.waiting)} waiting, KV ${percent(load.kv_cache_usage)}`;
  return load.freshness === "fresh" ? [value, note] : [NONE, `last heard ${duration(load.age_ns / 1e9)} ago`, "warn"];
}

const number = (text, title) => ({ text, title, number: true });
const SINK_HEADS = [
  "Sink",
  "State",
  number("Waiting rows"),
  number("Waiting tokens"),
  number("Oldest", "Age of the oldest waiting row"),
  number("Lag, frames", "Frames sent that the reader has not finished; known with a credit page"),
  number("Spilled", "Frames that wait only in the journal"),
  number("Rows/s"),
  number("Joined", "Rows that were joined with a later row of their request"),
];

function sinkRow(tr, sink) {
  const texts = [count(sink.waiting_rows), count(sink.waiting_tokens), sink.waiting_rows ? seconds(sink.oldest_seconds) : NONE, count(sink.lag_frames), count(sink.spilled_frames), rate(sink.rows_per_second), short(sink.rows_joined)];
  setText(tr.children[0], sink.name);
  setBadge(tr.children[1], ...(SINK_STATES[sink.state] ?? ["warn", String(sink.state)]));
  texts.forEach((text, at) => setText(tr.children[at + 2], text));
}

const PLUGIN_HEADS = ["Plugin", "State", "Version", number("Cost a row"), number("Rows"), number("Open", "Requests for which the plugin keeps state"), { text: "Verdicts", long: true }, { text: "Faults", long: true }];

function pluginRow(tr, plugin) {
  if (!tr.children[0].firstChild) tr.children[0].append(h("a", { href: `#/plugins` }, plugin.plugin));
  setBadge(tr.children[1], ...pluginState(plugin));
  const cost = plugin.ns_per_row === null ? NONE : seconds(plugin.ns_per_row / 1e9);
  [plugin.version, cost, short(plugin.rows), count(plugin.requests_open), counts(plugin.verdicts), counts(plugin.faults)].forEach((text, at) => setText(tr.children[at + 2], text));
}

function facts(list, each) {
  keyed(list, each, ([label]) => label, ([label]) => h("div", null, h("dt", null, label), h("dd")), (item, [, text, kind]) => {
    setText(item.children[1], text);
    setClass(item.children[1], kind ?? "");
  });
}

function ledgerFacts(ledger) {
  return [
    ["received", `${short(ledger.tokens_received)} tokens`],
    ["forwarded", short(ledger.tokens_forwarded)],
    ["dropped", short(ledger.tokens_dropped)],
    ["swallowed", short(ledger.tokens_swallowed)],
    ["held", short(ledger.tokens_held)],
    ["rows replaced", short(ledger.rows_replaced)],
    ["gaps", count(ledger.gaps), ledger.gaps ? "bad" : ""],
    ["balance", ledger.imbalances ? plural(ledger.imbalances, "imbalance") : "every request balances", ledger.imbalances ? "bad" : "good"],
  ];
}

function journalFacts(journal) {
  const { bytes: size, bytes_max: max, bytes_per_second: speed, full_in_seconds: full, full_by: by } = journal;
  const behind = journal.frame - journal.durable_frame;
  return [
    ["size", max ? `${bytes(size)} of ${bytes(max)}` : bytes(size)],
    ["grows", `${bytes(speed)}/s`],
    by === "retain"
      ? ["full", `in ${duration(full)}, then the oldest goes`]
      : ["full", typeof full === "number" ? `disk in ${duration(full)}` : "not at this rate", full < 3600 && typeof full === "number" ? "warn" : ""],
    ["last frame", `${count(journal.frame)}${behind > 0 ? `, ${plural(behind, "frame")} not synced yet` : ", synced"}`],
    ["disk", journal.failing ? "writes fail" : "writes succeed", journal.failing ? "bad" : "good"],
  ];
}
