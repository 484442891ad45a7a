// The life of one request: its end, its timeline, its rows before and after each plugin, and its neighbours.

import { get } from "./api.js";
import { badge, fill, h, keyed, row, setBadge, setClass, setText, svg, table } from "./dom.js";
import { between, clock, count, moment, nanos, plural, seconds, NONE } from "./format.js";
import { requestPath, STATES } from "./requests.js";
import { stepPath, stepsPath } from "./steps.js";

const REFRESH_MS = 2000;
// Rows at each end of a leg that are always painted.
const EDGE_ROWS = 20;
// Rows with a verdict, a gap or without content that are painted, each with the rows beside it.
const NOTABLE_ROWS = 100;
// Verdicts that rows in a run often have in common.
const REPEATED = ["hold", "release", "drop", "annotate"];
// The fewest rows of a fold.
const FOLD_ROWS = 5;
// Rows that a press opens, and the rows of a leg that are open at once: past them, those that were opened first are folded again.
const OPEN_STEP = 200;
const OPEN_ROWS = 2000;
const IDS_SHOWN = 12;
const STAGES = ["received", "journaled", "plugin", "held", "joined", "sent", "taken"];
const number = (text) => ({ text, number: true });
const LANE_HEADS = ["Stage", "When", number("Rows"), number("First"), number("Last")];
const NEIGHBOURS_SHOWN = 20;

export class RequestView {
  constructor(rid, query, known) {
    this.rid = rid;
    this.title = rid;
    this.known = known;
    this.frame = query.get("frame");
    this.opened = new Map();
    this.state = h("span");
    this.message = h("p", { class: "empty", role: "status" }, "Reading the journal…");
    this.body = h("div", { hidden: true });
    this.parts = parts();
    const { facts, end, asked, timeline, texts, legs, others } = this.parts;
    this.body.append(...[facts, end, asked, timeline, texts, legs, others].map((part) => part.node));
    this.node = h(
      "div",
      null,
      h("p", { class: "back" }, h("a", { href: "#/requests" }, "Requests")),
      h("div", { class: "title" }, h("h1", { class: "rid" }, rid), this.state),
      this.message,
      this.body,
    );
    this.load();
    this.timer = setInterval(() => {
      if (this.life?.state === "live" && !document.hidden && !this.asking) this.load();
    }, REFRESH_MS);
  }

  leave() {
    clearInterval(this.timer);
    this.asking?.abort();
  }

  // Another frame of the same request.
  moved(name, rest, query) {
    if (name !== "requests" || rest !== this.rid) return false;
    this.frame = query.get("frame");
    if (this.life) this.paint();
    return true;
  }

  async load() {
    this.asking = new AbortController();
    try {
      const life = await get(`/v1/requests/${encodeURIComponent(this.rid)}`, this.asking.signal);
      timed(life);
      this.life = life;
      this.message.hidden = true;
      this.body.hidden = false;
      this.paint();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.message.hidden = false;
      const remedy = error.status === 404 ? `. The journal of an earlier run may have it: afterbay journal show ${this.rid}` : "";
      setText(this.message, error.message + remedy);
    } finally {
      this.asking = null;
    }
  }

  paint() {
    const { life, parts } = this;
    setBadge(this.state, ...(STATES[life.state] ?? ["warn", String(life.state)]));
    paintFacts(parts.facts.list, life);
    paintEnd(parts.end, life);
    paintAsked(parts.asked, life);
    paintTimeline(parts.timeline, life);
    parts.texts.node.hidden = !paintTexts(parts.texts, life);
    this.paintRows();
    paintOthers(parts.others, life);
  }

  paintRows() {
    const { legs } = this.parts;
    keyed(legs.node, this.life.legs, (leg) => leg.stream, () => h("section", { class: "panel" }), (section, leg) => {
      const names = actors(leg, this.known.status?.plugins ?? []);
      const shape = names.join("\n");
      if (section.dataset.shape !== shape) {
        section.dataset.shape = shape;
        const made = table(`Rows on ${leg.stream}`, rowHeads(names), { hidden: false, wide: true, name: "rows" });
        made.node.addEventListener("click", ({ target }) => target.dataset.from && this.open(leg.stream, Number(target.dataset.from), Number(target.dataset.to)));
        section.replaceChildren(made.node);
      }
      const each = folded(passed(leg.rows_seen), this.opened.get(leg.stream) ?? [], this.frame);
      keyed(section.querySelector("tbody"), lines(each), (line) => line.key, (line) => madeLine(line, names, leg === this.life.legs[0]), (tr, line) => updateLine(tr, line, names, this.life, this.frame));
    });
  }

  // Opens the first rows of a fold.
  open(stream, from, to) {
    const ranges = [...(this.opened.get(stream) ?? []), [from, Math.min(to, from + OPEN_STEP)]];
    this.opened.set(stream, ranges.slice(-OPEN_ROWS / OPEN_STEP));
    this.paintRows();
  }
}

function parts() {
  const facts = h("dl", { class: "facts" });
  const end = h("div", { class: "notice end" });
  const asked = { list: h("dl", { class: "facts" }), prompt: h("pre") };
  const timeline = table("Timeline of the request", LANE_HEADS, { hidden: false });
  const scale = h("p", { class: "dim" });
  const steps = h("a", null, "The steps of the engine for this request");
  const texts = h("div", { class: "pair" });
  return {
    facts: { node: facts, list: facts },
    end: { node: end },
    asked: { node: h("section", { class: "panel" }, h("h3", null, "Asked for"), asked.list, asked.prompt), ...asked },
    timeline: { node: h("section", { class: "panel" }, timeline.node, scale, h("p", null, steps)), body: timeline.body, scale, steps },
    texts: { node: h("section", { class: "panel" }, texts), pair: texts },
    legs: { node: h("div") },
    others: { node: h("div", { class: "panel pair" }) },
  };
}

function paintFacts(list, life) {
  const { first_time: from, last_time: to, completion_tokens: counted } = life;
  const each = [
    ["stream", life.legs.map((leg) => leg.stream).join(" → ")],
    ["tenant", life.attributes?.tenant ?? NONE],
    ["first row", moment(from)],
    ["lasted", seconds(between(from, to))],
    ["received", plural(life.tokens_received, "token")],
    ["scheduler's count", count(counted)],
    ["forwarded", count(life.tokens_forwarded)],
    ["replaced", count(life.tokens_replaced)],
    ["dropped", count(life.tokens_dropped)],
    ["gaps", count(life.gaps), life.gaps ? "bad" : ""],
    ["finish", life.finish_reason ?? NONE],
  ];
  if (life.erased) each.push(["erased", `${clock(life.erased.time)} by ${life.erased.by}`, "warn"]);
  keyed(list, each, ([label]) => label, ([label]) => h("div", null, h("dt", null, label), h("dd")), (item, [, text, kind]) => {
    setText(item.children[1], text);
    setClass(item.children[1], kind ?? "");
  });
}

function paintEnd({ node }, life) {
  const notes = [...(life.ended?.sentences ?? [])];
  if (life.truncated) notes.push("This page does not show all rows or contents of this request: afterbay journal show prints all.");
  keyed(node, notes, (text) => text, (text) => h("p", null, text));
  node.hidden = notes.length === 0;
}

// What the scheduler was asked for, by the request's record on its first leg.
function paintAsked({ node, list, prompt }, life) {
  const record = life.legs.map((leg) => leg.record).find((it) => it);
  node.hidden = !record;
  if (!record) return;
  const { rid, arrived, arrived_unix_ns, prompt: text, prompt_ids: ids, prompt_tokens: tokens, ...others } = record;
  const word = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const words = (value) => (value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value).map(([name, one]) => `${name} ${word(one)}`).join(", ") : word(value));
  const each = Object.entries(others).map(([name, value]) => [name.replaceAll("_", " "), words(value)]);
  if (arrived) each.unshift(["arrived", clock(arrived)], ["first row", life.rows ? `+${seconds(between(arrived, life.first_time))}` : NONE]);
  if (tokens !== undefined) each.push(["prompt", plural(tokens, "token")]);
  keyed(list, each, ([label]) => label, ([label]) => h("div", null, h("dt", null, label), h("dd")), (item, [, value]) => setText(item.children[1], value));
  const more = ids && ids.length < tokens ? ` … ${count(tokens - ids.length)} more` : "";
  setText(prompt, (text ?? (ids ? ids.join(" ") : "")) + more);
  prompt.hidden = !prompt.textContent;
}

// The lanes of the timeline: one for each stage, and for each plugin or sink of a stage.
export function lanes(timeline) {
  const found = new Map();
  for (const event of timeline) {
    const name = laneName(event);
    if (!found.has(name)) found.set(name, { name, stage: event.stage, events: [] });
    found.get(name).events.push(event);
  }
  return [...found.values()].sort((a, b) => STAGES.indexOf(a.stage) - STAGES.indexOf(b.stage));
}

function laneName({ stage, plugin, sink, verdict }) {
  if (stage === "plugin") return `${plugin}: ${verdict ?? "verdict"}`;
  if (stage === "held") return `held by ${plugin}`;
  return sink ? `${stage} ${{ joined: "with the next row for", sent: "to", taken: "by" }[stage] ?? ""} ${sink}` : stage;
}

function paintTimeline({ body, scale, steps }, { rid, timeline, times, first_time: first, record_time: since, last_time: last }) {
  // The end of a time is not within it.
  steps.href = stepsPath({ since: since ?? first, until: last ? new Date(Date.parse(last) + 1).toISOString() : "", rid });
  const { start, at, until, span } = times;
  keyed(body, lanes(timeline), (lane) => lane.name, () => row(LANE_HEADS), (tr, lane) => {
    const marks = lane.events.map((event) => [at.get(event), until.get(event)]);
    const [first, last] = [marks[0][0], marks.at(-1)[0]];
    fill(tr, [lane.name, track(marks, span, lane.stage), count(marks.length), `+${seconds(first)}`, `+${seconds(last)}`]);
  });
  setText(scale, timeline.length ? `From ${clock(start)}, ${seconds(span)} in all. Sent, joined and taken rows stand at their own times. Other marks stand where the frame of their row was received. A line is the time that a row was held.` : "The journal has no row of this request.");
}

// Seconds from the first event to each. A stage without a time of its own has that of its frame. A time is parsed once: a life
// has up to 10,000 stages for each stream.
function timed(life) {
  const frames = new Map();
  const known = new Map();
  for (const event of life.timeline) {
    const frame = `${event.stream} ${event.frame}`;
    const time = nanos(event.time) ?? frames.get(frame) ?? null;
    if (time === null) continue;
    frames.set(frame, time);
    known.set(event, time);
  }
  const start = life.timeline.find((event) => event.time)?.time;
  const first = [...known.values()].reduce((least, time) => (least === null || time < least ? time : least), null) ?? 0n;
  const after = (time) => Number(time - first) / 1e9;
  const at = new Map([...known].map(([event, time]) => [event, after(time)]));
  const until = new Map(life.timeline.filter((event) => event.until).map((event) => [event, after(nanos(event.until))]));
  const span = [...at.values(), ...until.values()].reduce((most, one) => Math.max(most, one), 1e-9);
  life.timeline = life.timeline.filter((event) => at.has(event));
  life.times = { start, at, until, span };
  life.ways = new Map();
  for (const event of life.timeline) {
    const frame = `${event.stream} ${event.frame}`;
    if (!life.ways.has(frame)) life.ways.set(frame, []);
    life.ways.get(frame).push(event);
  }
}

// The way of a row in words, without the stages that the other columns show, and those that a later one implies.
function way(life, row) {
  const events = life.ways.get(`${row.stream} ${row.frame}`) ?? [];
  const taken = new Set(events.filter(({ stage }) => stage === "taken").map(({ sink }) => sink));
  const isShown = ({ stage, sink }) => !["received", "journaled", "plugin"].includes(stage) && !(stage === "sent" && taken.has(sink));
  const words = events.filter(isShown).map((event) => {
    const waited = event.until ? between(event.time, event.until) : null;
    return waited === null ? laneName(event) : `${laneName(event)} for ${seconds(waited)}`;
  });
  if (!events.some(({ stage }) => stage === "journaled")) words.unshift("not in the journal");
  return words.join(", ") || NONE;
}

// Marks of a lane from left to right, each [from, until]. The columns beside the drawing have the same times as figures.
function track(marks, span, stage) {
  const x = (time) => Math.round(2 + (time / span) * 996);
  let path = "";
  let last = -1;
  for (const [from, until] of marks) {
    const at = x(from);
    // Marks on the same place are one.
    if (at !== last || until !== undefined) path += until === undefined ? `M${at} 2V18` : `M${at} 10H${x(until)}M${at} 2V18`;
    last = at;
  }
  return svg("svg", { class: "track", viewBox: "0 0 1000 20", preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" }, svg("path", { class: "rail", d: "M0 10H1000", "vector-effect": "non-scaling-stroke" }), svg("path", { class: `marks ${stage}`, d: path, "vector-effect": "non-scaling-stroke" }));
}

// What each row of a leg became: {row, steps, out, gone}. A step is an action of a plugin and the content after it; `out` is the
// content for the reader, and `gone` the reason why there is none. Held rows continue with the row that releases them.
export function passed(rows) {
  const held = new Map();
  return rows.map((row) => {
    let now = { ids: row.ids ?? [], text: row.text ?? null };
    const steps = (row.actions ?? []).map((action) => {
      const { plugin, verdict, after } = action;
      const before = held.get(plugin) ?? [];
      if (verdict === "hold") held.set(plugin, [...before, now]);
      if (after) {
        now = { ids: after.ids ?? now.ids, text: now.text === null && !after.text ? null : (after.text ?? null) };
      } else if (verdict === "release") {
        held.delete(plugin);
        const all = [...before, now];
        now = { ids: all.flatMap((one) => one.ids), text: all.some((one) => one.text === null) ? null : all.map((one) => one.text).join("") };
      }
      return { action, after: now };
    });
    const last = steps.at(-1)?.action.verdict;
    const gone = last === "drop" || (row.passage === "dropped" && last !== "hold") ? "dropped" : last === "hold" ? "held" : null;
    return { row, steps, out: now, gone };
  });
}

// The plugins that acted on a row of the leg, in the order of the chain, then others.
function actors(leg, plugins) {
  const names = new Set();
  for (const row of leg.rows_seen) for (const action of row.actions ?? []) names.add(action.plugin);
  const chain = plugins.filter((plugin) => plugin.stream === leg.stream).map((plugin) => plugin.plugin);
  return [...chain.filter((name) => names.has(name)), ...[...names].filter((name) => !chain.includes(name))];
}

// The rows that are painted, and a fold {from, to, tokens, acted, first, last} in place of each run of others. Painted are the first
// and the last rows, those of the chosen frame, opened ranges, and rows that differ from the usual: one with a verdict, a gap, a
// finish reason or without content. Of rows in a run that were held, released or dropped alike, the first is painted.
export function folded(each, opened, frame) {
  const isShown = new Uint8Array(each.length);
  const show = (from, to) => isShown.fill(1, Math.max(0, from), Math.min(to, each.length));
  const isActed = ({ row, steps }) => steps.length > 0 || Boolean(row.gap ?? row.missing ?? row.finish_reason);
  const shape = ({ row, steps }) => (row.gap || row.finish_reason ? null : [row.missing, ...steps.map(({ action }) => (REPEATED.includes(action.verdict) ? `${action.plugin} ${action.verdict}` : NaN))]);
  const isRepeated = (line, before) => {
    const [one, other] = [shape(line), before ? shape(before) : null];
    return one !== null && one.length === other?.length && one.every((part, at) => part === other[at]);
  };
  show(0, EDGE_ROWS);
  show(each.length - EDGE_ROWS, each.length);
  let notable = 0;
  each.forEach((line, at) => {
    if (String(line.row.frame) === frame) show(at - 2, at + 3);
    if (isActed(line) && !isRepeated(line, each[at - 1]) && ++notable <= NOTABLE_ROWS) show(at - 1, at + 2);
  });
  for (const [from, to] of opened) show(from, to);
  const painted = [];
  for (let from = 0; from < each.length; ) {
    let to = from;
    while (to < each.length && !isShown[to]) to += 1;
    if (to - from >= FOLD_ROWS) {
      const rows = each.slice(from, to);
      const tokens = rows.reduce((sum, { row }) => sum + row.tokens, 0);
      painted.push({ fold: { from, to, tokens, acted: rows.filter(isActed).length, first: rows[0].row, last: rows.at(-1).row } });
    } else {
      painted.push(...each.slice(from, to));
    }
    if (to < each.length) painted.push(each[to]);
    from = to + 1;
  }
  return painted;
}

// The lines of the table: rows, before some of them a gap, and folds.
function lines(each) {
  return each.flatMap((line) => {
    if (line.fold) return [{ key: `fold ${line.fold.from}`, ...line }];
    const { row } = line;
    const key = `${row.frame}/${row.row ?? 0}`;
    return row.gap ? [{ key: `gap ${key}`, gap: row.gap }, { key, ...line }] : [{ key, ...line }];
  });
}

function rowHeads(names) {
  return ["Received", number("Frame"), number("Tokens"), "From the engine", ...names.map((name) => `After ${name}`), "To the reader", "Way"];
}

function madeLine(line, names, isFirstLeg) {
  if (line.fold) return h("tr", { class: "fold", role: "row" }, h("td", { role: "cell", colspan: String(6 + names.length) }, h("button", { type: "button", class: "quiet" })));
  if (!line.gap) {
    const tr = row(rowHeads(names));
    // The frames of a second leg are the detokenizer's, and no steps.
    if (isFirstLeg) tr.children[1].append(h("a", { href: stepPath(line.row), title: "The step of the engine" }));
    return tr;
  }
  const { expected, got } = line.gap;
  return h("tr", { class: "gap", role: "row" }, h("td", { role: "cell", colspan: String(6 + names.length) }, badge("bad", `Gap: the scheduler had counted ${count(got)} tokens, ${count(expected)} were received`)));
}

function updateLine(tr, line, names, life, frame) {
  if (line.gap) return;
  if (line.fold) return updateFold(tr.querySelector("button"), line.fold, life);
  const { row, steps, out, gone } = line;
  const isChosen = String(row.frame) === frame;
  if (isChosen && !tr.hasAttribute("aria-current")) setTimeout(() => tr.scrollIntoView({ block: "center" }));
  if (isChosen) tr.setAttribute("aria-current", "true");
  else tr.removeAttribute("aria-current");
  const passage = way(life, row);
  const done = JSON.stringify([row, out, passage]);
  if (tr.dataset.done === done) return;
  tr.dataset.done = done;
  const after = between(life.first_time, row.time);
  setText(tr.children[0], after ? `+${seconds(after)}` : clock(row.time));
  setText(tr.children[1].firstChild ?? tr.children[1], String(row.frame));
  setText(tr.children[2], count(row.tokens));
  tr.children[3].replaceChildren(row.missing ? h("span", { class: "dim" }, row.missing) : content(row.ids, row.text));
  names.forEach((name, at) => {
    const own = steps.filter((step) => step.action.plugin === name);
    setClass(tr.children[4 + at], own.length ? "acted" : "");
    tr.children[4 + at].replaceChildren(...(own.length ? own.map(shownStep) : [h("span", { class: "dim" }, "unchanged")]));
  });
  const finish = row.finish_reason ? [h("span", { class: "finish" }, `finish: ${row.finish_reason}`)] : [];
  tr.children[4 + names.length].replaceChildren(gone ? h("span", { class: "dim" }, gone) : content(out.ids, out.text), ...finish);
  setText(tr.children[5 + names.length], passage);
}

function updateFold(button, { from, to, tokens, acted, first, last }, life) {
  const more = Math.min(to - from, OPEN_STEP);
  const times = [first, last].map((row) => `+${seconds(between(life.first_time, row.time))}`).join(" to ");
  const which = acted ? `, ${count(acted)} of them with a verdict, a gap or without content` : "";
  setText(button, `${more < to - from ? `Show ${count(more)} of ` : "Show "}${plural(to - from, "row")}, ${times}, ${plural(tokens, "token")}${which}`);
  Object.assign(button.dataset, { from, to });
}

function shownStep({ action, after }) {
  const { verdict, text = "", rows_released: released } = action;
  const label = released ? `${verdict} ${plural(released, "row")}` : verdict;
  const kind = verdict === "fault" ? "bad" : verdict === "drop" || verdict === "abort" ? "warn" : "off";
  const isContent = verdict === "replace" || verdict === "release";
  const reason = text && verdict !== "replace" ? h("span", { class: "reason" }, text) : null;
  return h("div", { class: "step" }, badge(kind, label), reason, isContent ? content(after.ids, after.text) : null);
}

function content(ids, text) {
  const parts = [];
  if (text !== null && text !== undefined) parts.push(h("span", { class: "text" }, text));
  if (ids?.length) {
    const more = ids.length > IDS_SHOWN ? ` … ${count(ids.length - IDS_SHOWN)} more` : "";
    parts.push(h("span", { class: "ids" }, ids.slice(0, IDS_SHOWN).join(" ") + more));
  }
  return parts.length ? h("div", { class: "content" }, parts) : h("span", { class: "dim" }, "nothing");
}

// The whole text, as the engine sent it and as the reader got it. False: no row has a text.
function paintTexts({ pair }, life) {
  const leg = life.legs.findLast((leg) => (leg.rows_seen).some((row) => typeof row.text === "string"));
  if (!leg) return false;
  const before = [];
  const after = [];
  for (const { row, steps, out, gone } of passed(leg.rows_seen)) {
    if (row.gap) for (const side of [before, after]) side.push(h("mark", { class: "gap" }, ` gap of ${plural(row.gap.got - row.gap.expected, "token")} `));
    before.push(row.text ?? "");
    const isOther = gone === "dropped" || steps.some(({ action }) => action.verdict === "replace");
    after.push(isOther ? h("mark", null, gone ? "[dropped]" : (out.text ?? "")) : (out.text ?? ""));
  }
  pair.replaceChildren(
    h("div", null, h("h3", null, "Text from the engine"), h("pre", null, before)),
    h("div", null, h("h3", null, "Text to the reader"), h("pre", null, after)),
  );
  return true;
}

function paintOthers({ node }, life) {
  const links = (title, none, each) => h("div", null, h("h3", null, title), each.length ? h("ul", { class: "links" }, each) : h("p", { class: "dim" }, none));
  const all = life.neighbours ?? [];
  const neighbours = all.slice(0, NEIGHBOURS_SHOWN).map(({ rid, batches }) => h("li", null, h("a", { class: "rid", href: requestPath(rid) }, rid), h("span", { class: "dim" }, plural(batches, "batch", "batches"))));
  if (all.length > NEIGHBOURS_SHOWN) neighbours.push(h("li", { class: "dim" }, `and ${count(all.length - NEIGHBOURS_SHOWN)} more`));
  const earlier = (life.earlier ?? []).map((of) => h("li", null, `${clock(of.first_time)}: ${of.state}, ${plural(of.tokens_received, "token")}`));
  const shape = JSON.stringify([life.neighbours, life.earlier]);
  // A link that has the focus stays.
  if (node.dataset.shape === shape) return;
  node.dataset.shape = shape;
  node.replaceChildren(links("Shared its batches with", "No other request was in its batches.", neighbours));
  if (earlier.length) node.append(links("Earlier requests with this rid", "", earlier));
}
