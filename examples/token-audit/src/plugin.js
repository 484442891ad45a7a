// token-audit: at the end of each request, notes the numbers of its tokens and of its different tokens, and
// the longest run of one token.
import log from "afterbay:plugin/log@0.2.0";
import metrics from "afterbay:plugin/metrics@0.2.0";

const SCHEMA = {
  type: "object",
  properties: { run_max: { type: "integer", minimum: 1, description: "The plugin warns of longer runs of one token." } },
  additionalProperties: false,
};

let runMax = 32;

/** The statistics of each open request, by its number. */
const requests = new Map();

function count(state, ids) {
  for (const id of ids) {
    state.run = id === state.last ? state.run + 1 : 1;
    state.last = id;
    state.longest = Math.max(state.longest, state.run);
    state.different.add(id);
  }
  state.tokens += ids.length;
}

function report(request, { tokens, different, longest }) {
  const note = `${tokens} tokens, ${different.size} different, longest run ${longest}`;
  metrics.counterAdd("tokens", [], tokens);
  if (tokens > 0) metrics.histogramObserve("distinct_share", [], different.size / tokens);
  if (longest > runMax) {
    metrics.counterAdd("long_runs", [], 1);
    log.log("warn", request, `${note}: over ${runMax}`);
  }
  return note;
}

export const plugin = {
  describe() {
    return {
      name: "token-audit",
      version: "0.1.0",
      settingsSchema: JSON.stringify(SCHEMA),
      columns: { outputIds: true, finished: true },
      writes: "delta",
      wants: { pressure: false, changed: false, state: false, timer: false },
    };
  },

  configure(text) {
    const { run_max = runMax, ...rest } = JSON.parse(text);
    const [unknown] = Object.keys(rest);
    if (unknown) throw { tag: "setting", val: { pointer: `/${unknown}`, message: "is unknown" } };
    if (!Number.isInteger(run_max) || run_max < 1) {
      throw { tag: "setting", val: { pointer: "/run_max", message: `is ${run_max}, must be 1 or more` } };
    }
    runMax = run_max;
  },

  open(opened) {
    for (const { request } of opened) {
      requests.set(request, { tokens: 0, different: new Set(), last: undefined, run: 0, longest: 0 });
    }
  },

  process(batch) {
    const verdicts = [];
    let start = 0;
    batch.requests.forEach((request, row) => {
      const end = batch.outputEnds[row];
      const state = requests.get(request);
      if (state) count(state, batch.outputIds.slice(start, end));
      if (state && batch.finished[row] !== "running") {
        verdicts.push({ row, action: { tag: "annotate", val: report(request, state) } });
      }
      start = end;
    });
    return verdicts;
  },

  close(ended) {
    ended.forEach((request) => requests.delete(request));
  },

  // The host makes these calls only if `wants` asks for them.
  changed() {},
  pressure() {},
  answered() {
    return [];
  },
  due() {
    return [];
  },
  exportState() {
    return new Uint8Array();
  },
  importState() {},
};
