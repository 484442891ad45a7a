// The list of requests: live and recent, newest first. The server searches; the page has one page of the answer.

import { get } from "./api.js";
import { h, keyed, row, setBadge, setText, table } from "./dom.js";
import { between, count, moment, plural, seconds } from "./format.js";

const PAGE_ROWS = 100;
const TYPING_MS = 120;
const REFRESH_MS = 2000;
const ATTRIBUTES = { tenant: "Tenant", model: "Model", lora: "LoRA adapter", session: "Session" };
const TIMES = { since: "Since", until: "Begun before" };
const FIELDS = ["rid", "state", "finish", "plugin", "stream", ...Object.keys(ATTRIBUTES), ...Object.keys(TIMES)];
export const STATES = { live: ["good", "live"], finished: ["off", "finished"], abandoned: ["warn", "abandoned"] };

const HEADS = [
  "Request",
  "State",
  "Tenant",
  "Stream",
  { text: "Rows", number: true },
  { text: "Tokens in", number: true },
  { text: "Tokens out", number: true },
  "Finish",
  "Plugins",
  { text: "First row", number: true },
  { text: "Lasted", number: true },
];

export class RequestsView {
  title = "Requests";

  constructor(query, known) {
    this.known = known;
    this.inputs = {
      rid: h("input", { type: "search", id: "rid", placeholder: "beginning of a rid", autocomplete: "off", spellcheck: "false" }),
      state: h("select", { id: "state" }, ["", "live", "finished", "abandoned"].map((state) => h("option", { value: state }, state || "any"))),
      finish: h("input", { type: "search", id: "finish", placeholder: "any", list: "finishes", autocomplete: "off", spellcheck: "false" }),
      plugin: h("select", { id: "plugin" }, h("option", { value: "" }, "any")),
      stream: h("select", { id: "stream" }, h("option", { value: "" }, "all")),
    };
    for (const name of Object.keys(ATTRIBUTES)) {
      this.inputs[name] = h("input", { type: "search", id: name, placeholder: "any", list: `${name}s`, autocomplete: "off", spellcheck: "false" });
    }
    for (const name of Object.keys(TIMES)) this.inputs[name] = h("input", { type: "datetime-local", id: name, step: "1" });
    const labels = { ...TIMES, rid: "Request id", state: "State", finish: "Finish reason", plugin: "Verdict of plugin", stream: "Stream", ...ATTRIBUTES };
    // The values that are listed, as proposals.
    this.values = Object.fromEntries(Object.keys(ATTRIBUTES).map((name) => [name, h("datalist", { id: `${name}s` })]));
    const finishes = h("datalist", { id: "finishes" }, ["stop", "length", "abort"].map((value) => h("option", { value })));
    this.form = h("form", { class: "search", role: "search" }, FIELDS.map((name) => h("div", null, h("label", { for: name }, labels[name]), this.inputs[name])), finishes, Object.values(this.values));
    for (const name of Object.keys(ATTRIBUTES)) this.inputs[name].parentElement.hidden = true;
    this.summary = h("p", { class: "dim" });
    // Read aloud after a search, not at each refresh.
    this.said = h("p", { class: "unseen", role: "status" });
    this.table = table("Requests, newest first", HEADS, { wide: true });
    this.empty = h("p", { class: "empty" });
    this.newer = h("button", { type: "button", on: { click: () => this.turn(-1) } }, "Newer");
    this.older = h("button", { type: "button", on: { click: () => this.turn(1) } }, "Older");
    this.pages = h("p", { class: "buttons" }, this.newer, this.older);
    this.node = h("div", null, h("div", { class: "title" }, h("h1", null, "Requests")), this.form, this.summary, this.said, this.table.node, this.empty, this.pages);
    this.read(query);
    this.form.addEventListener("input", () => this.typed());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.load(true);
    });
    // The cursors of the pages that were turned, the first page's among them.
    this.cursors = [""];
    this.next = null;
    this.load();
    this.timer = setInterval(() => {
      // Only the first page changes, and only while somebody looks at it and no other answer is awaited.
      if (this.cursors.length === 1 && !document.hidden && !this.asking) this.load();
    }, REFRESH_MS);
  }

  leave() {
    clearInterval(this.timer);
    clearTimeout(this.typing);
    this.asking?.abort();
  }

  // Another search of this view, from the address.
  moved(name, rest, query) {
    if (name !== "requests" || rest) return false;
    if (query.toString() !== this.query().toString()) {
      this.read(query);
      this.cursors = [""];
      this.load();
    }
    return true;
  }

  read(query) {
    for (const name of FIELDS) {
      const given = query.get(name) ?? "";
      // The field has the time of this place, the address that of everywhere.
      const value = name in TIMES && given ? moment(given).replace(" ", "T") : given;
      const input = this.inputs[name];
      if (input.tagName === "SELECT" && ![...input.options].some((option) => option.value === value)) input.append(h("option", { value }, value));
      input.value = value;
    }
  }

  query() {
    const value = (name) => {
      const text = this.inputs[name].value.trim();
      return name in TIMES && text ? new Date(text).toISOString() : text;
    };
    return new URLSearchParams(FIELDS.map((name) => [name, value(name)]).filter(([, value]) => value));
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      const query = this.query().toString();
      history.replaceState(null, "", `#/requests${query ? `?${query}` : ""}`);
      this.cursors = [""];
      this.load(true);
    }, TYPING_MS);
  }

  turn(by) {
    if (by > 0 && this.next === null) return;
    if (by > 0) this.cursors.push(this.next);
    else if (this.cursors.length > 1) this.cursors.pop();
    this.load(true);
  }

  // `isAsked` is set if the reader of the page asked for it.
  async load(isAsked = false) {
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    const query = this.query();
    query.set("limit", PAGE_ROWS);
    if (this.cursors.at(-1)) query.set("after", this.cursors.at(-1));
    try {
      this.show(await get(`/v1/requests?${query}`, asking.signal));
      if (isAsked) setText(this.said, this.summary.textContent);
    } catch (error) {
      if (error.name === "AbortError") return;
      setText(this.summary, `The list could not be read: ${error.message}`);
    } finally {
      if (this.asking === asking) this.asking = null;
    }
  }

  show({ requests, next, known, kept, complete }) {
    const first = (this.cursors.length - 1) * PAGE_ROWS;
    const isSearch = this.query().size > 0;
    const which = requests.length ? `${count(first + 1)} to ${count(first + requests.length)}` : "none";
    const forgotten = known > kept ? ` The newest ${count(kept)} can be listed; the journal has the others: afterbay journal ls.` : "";
    setText(this.summary, `${isSearch ? "Matches" : "Requests"}: ${which}${next ? ", more follow" : ""}. ${plural(known, "request")} in the index.${forgotten}${complete === false ? " The index still reads older segments of the journal." : ""}`);
    keyed(this.table.body, requests, (of) => `${of.stream} ${of.request} ${of.rid}`, made, update);
    for (const [name, list] of Object.entries(this.values)) {
      const values = [...new Set(requests.map((of) => of.attributes?.[name]).filter(Boolean))].sort();
      keyed(list, values, (value) => value, (value) => h("option", { value }));
      // A field that was offered stays: a search may find nothing.
      if (values.length || this.inputs[name].value) this.inputs[name].parentElement.hidden = false;
    }
    this.table.node.classList.toggle("without-tenant", !requests.some((of) => of.attributes?.tenant));
    this.table.node.hidden = requests.length === 0;
    this.empty.hidden = requests.length > 0;
    setText(this.empty, isSearch ? "No request matches. Shorten the rid, or set a field to “any”." : "No request has arrived. Send one to the engine, and it appears here.");
    this.next = next ?? null;
    this.newer.disabled = this.cursors.length === 1;
    this.older.disabled = this.next === null;
    this.pages.hidden = this.newer.disabled && this.older.disabled;
  }

  update(status) {
    const streams = status.streams.map((stream) => stream.name);
    options(this.inputs.stream, streams);
    options(this.inputs.plugin, [...new Set((status.plugins ?? []).map((plugin) => plugin.plugin))]);
    this.inputs.stream.parentElement.hidden = streams.length < 2 && !this.inputs.stream.value;
  }
}

export function options(select, values) {
  for (const value of values) {
    if (![...select.options].some((option) => option.value === value)) select.append(h("option", { value }, value));
  }
}

export function requestPath(rid) {
  return `#/requests/${encodeURIComponent(rid)}`;
}

function made(of) {
  const tr = row(HEADS);
  tr.children[0].append(h("a", { class: "rid", href: requestPath(of.rid) }, of.rid));
  return tr;
}

function update(tr, of) {
  setBadge(tr.children[1], ...(STATES[of.state] ?? ["warn", String(of.state)]));
  const finish = [of.finish_reason, of.erased ? "erased" : ""].filter(Boolean).join(", ");
  const gaps = of.gaps ? ` (${plural(of.gaps, "gap")})` : "";
  const texts = [of.attributes?.tenant ?? "", of.stream, count(of.rows), `${count(of.tokens_received)}${gaps}`, count(of.tokens_forwarded), finish, (of.plugins ?? []).join(", "), moment(of.first_time ?? of.record_time), seconds(between(of.first_time, of.last_time))];
  texts.forEach((text, at) => setText(tr.children[at + 2], text));
}
