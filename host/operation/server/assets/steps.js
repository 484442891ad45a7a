// The steps of the engine: the slowest first, and the requests of one step.

import { get } from "./api.js";
import { fill, h, keyed, row, setText, table } from "./dom.js";
import { count, moment, percent, plural, seconds } from "./format.js";
import { options, requestPath } from "./requests.js";

const LIMIT = 100;
const SPANS = { "1m": "last minute", "10m": "last 10 minutes", "1h": "last hour", "1d": "last day", all: "any time" };
const FIELDS = ["since", "stream", "rid"];
const number = (text, title) => ({ text, number: true, title });
const STEP_HEADS = ["Step", "Ended", number("Time"), number("Requests", "Requests that the engine worked on"), number("New", "Requests whose prompt it computed"), number("Prompt tokens"), number("New tokens")];
const PART_HEADS = ["Request", number("Part"), number("Share"), number("Prompt tokens"), number("New tokens")];

export class StepsView {
  title = "Steps";

  constructor(query) {
    this.inputs = {
      since: h("select", { id: "since" }, Object.entries(SPANS).map(([value, text]) => h("option", { value }, text))),
      stream: h("select", { id: "stream" }, h("option", { value: "" }, "all")),
      rid: h("input", { type: "search", id: "rid", placeholder: "whole rid", autocomplete: "off", spellcheck: "false" }),
    };
    const labels = { since: "Time", stream: "Stream", rid: "Request id" };
    const again = h("button", { type: "submit", class: "quiet" }, "Read again");
    this.form = h("form", { class: "search", role: "search" }, FIELDS.map((name) => h("div", null, h("label", { for: name }, labels[name]), this.inputs[name])), again);
    this.form.addEventListener("change", () => this.go());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.load();
    });
    this.heading = h("h1", null, "Steps");
    this.back = h("p", { class: "back", hidden: true }, h("a", { href: "#/steps" }, "Steps"));
    this.summary = h("p", { class: "dim", role: "status" });
    this.steps = table("Steps of the engine, the slowest first", STEP_HEADS, { name: "steps" });
    this.parts = table("Requests of the step, the largest part first", PART_HEADS, { name: "parts" });
    this.node = h("div", null, this.back, h("div", { class: "title" }, this.heading), this.form, this.summary, this.steps.node, this.parts.node);
    this.moved("steps", "", query);
  }

  leave() {
    this.asking?.abort();
  }

  // Another search, or one step, from the address.
  moved(name, rest, query) {
    if (name !== "steps") return false;
    this.frame = query.get("frame");
    this.until = query.get("until");
    for (const field of FIELDS) {
      const value = query.get(field) ?? (field !== "since" ? "" : this.frame ? "all" : "10m");
      const input = this.inputs[field];
      if (input.tagName === "SELECT" && ![...input.options].some((option) => option.value === value)) input.append(h("option", { value }, field === "since" ? `since ${moment(value)}` : value));
      input.value = value;
    }
    this.back.hidden = !this.frame;
    this.form.hidden = Boolean(this.frame);
    setText(this.heading, this.frame ? `Step ${this.frame}` : "Steps");
    this.load();
    return true;
  }

  go() {
    const { since, stream, rid } = Object.fromEntries(FIELDS.map((name) => [name, this.inputs[name].value.trim()]));
    // The end belongs to the time that a link gave.
    const until = since in SPANS ? null : this.until;
    location.hash = stepsPath({ since, stream, rid, until });
  }

  async load() {
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    setText(this.summary, "Reading the journal…");
    const given = FIELDS.map((name) => [name, this.inputs[name].value.trim()]);
    const query = new URLSearchParams(given.filter(([, value]) => value && value !== "all"));
    if (this.until && !(this.inputs.since.value in SPANS)) query.set("until", this.until);
    if (this.frame) query.set("frame", this.frame);
    query.set("limit", LIMIT);
    try {
      this.show(await get(`/v1/steps?${query}`, asking.signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      for (const part of [this.steps, this.parts]) part.node.hidden = true;
      setText(this.summary, `The steps could not be read: ${error.message}`);
    } finally {
      if (this.asking === asking) this.asking = null;
    }
  }

  show({ steps, known, gpu_ns: time, complete_since: since }) {
    const [step] = steps;
    const isOne = this.frame !== null;
    const cut = since ? ` Steps before ${moment(since)} were not read: afterbay journal steps reads all.` : "";
    const none = isOne ? `The journal has no step ${this.frame}: the frame has no row with a token or an end, or retention removed it.` : "No step in this time.";
    const all = `${plural(known, "step")}, in which the engine worked ${seconds(time / 1e9)}.${known > steps.length ? ` The slowest ${count(steps.length)} are shown.` : ""}`;
    setText(this.summary, !step ? none + cut : isOne ? `Stream ${step.stream}, ended ${moment(step.time)}: ${facts(step)}.` : all + cut);
    this.steps.node.hidden = isOne || !step;
    this.parts.node.hidden = !isOne || !step;
    if (!isOne) {
      keyed(this.steps.body, steps, (of) => `${of.stream} ${of.frame}`, (of) => {
        const tr = row(STEP_HEADS);
        const name = this.inputs.stream.options.length > 2 ? `${of.stream} ${of.frame}` : String(of.frame);
        tr.children[0].append(h("a", { href: stepPath(of) }, name));
        return tr;
      }, (tr, of) => fill(tr, [tr.children[0].firstChild, moment(of.time), seconds(of.gpu_ns / 1e9), count(of.rows), count(of.new_requests), count(of.prompt_tokens), count(of.tokens)]));
    } else if (step) {
      const parts = [...step.requests].sort((a, b) => b.gpu_ns - a.gpu_ns);
      keyed(this.parts.body, parts, (of) => `${of.request} ${of.rid}`, (of) => {
        const tr = row(PART_HEADS);
        tr.children[0].append(h("a", { class: "rid", href: `${requestPath(of.rid)}?frame=${step.frame}` }, of.rid));
        return tr;
      }, (tr, of) => fill(tr, [tr.children[0].firstChild, seconds(of.gpu_ns / 1e9), percent(step.gpu_ns ? of.gpu_ns / step.gpu_ns : null), count(of.prompt_tokens), count(of.tokens)]));
    }
  }

  update(status) {
    const streams = status.streams.map((stream) => stream.name);
    options(this.inputs.stream, streams);
    this.inputs.stream.parentElement.hidden = streams.length < 2 && !this.inputs.stream.value;
  }
}

function facts(step) {
  return `${seconds(step.gpu_ns / 1e9)} for ${plural(step.rows, "request")}, ${count(step.new_requests)} new, ${plural(step.prompt_tokens, "token")} of prompts, ${plural(step.tokens, "new token")}`;
}

export function stepsPath(search) {
  return `#/steps?${new URLSearchParams(Object.entries(search).filter(([, value]) => value))}`;
}

// The step that ended with a frame: {stream, frame}.
export function stepPath({ stream, frame }) {
  return stepsPath({ stream, frame: String(frame) });
}
