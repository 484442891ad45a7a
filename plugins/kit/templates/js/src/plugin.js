// {{name}}: ends a request at the first of some tokens. Replace this logic by your own.
import log from "afterbay:plugin/log@0.2.0";

const SCHEMA = {
  type: "object",
  properties: { stop: { type: "array", items: { type: "integer" }, description: "The token ids that end a request." } },
  required: ["stop"],
  additionalProperties: false,
};

let stop = new Set();

const isTokenList = (value) => Array.isArray(value) && value.length > 0 && value.every(Number.isInteger);

export const plugin = {
  describe() {
    return {
      name: "{{name}}",
      version: "0.1.0",
      settingsSchema: JSON.stringify(SCHEMA),
      columns: { outputIds: true },
      writes: "delta",
      wants: { pressure: false, changed: false, state: false, timer: false },
    };
  },

  configure(text) {
    const settings = JSON.parse(text);
    if (!isTokenList(settings.stop)) {
      throw { tag: "setting", val: { pointer: "/stop", message: "must be a list of at least one token id" } };
    }
    stop = new Set(settings.stop);
  },

  open(requests) {},

  process(batch) {
    const verdicts = [];
    let start = 0;
    for (let row = 0; row < batch.requests.length; row++) {
      const end = batch.outputEnds[row];
      for (let at = start; at < end; at++) {
        if (stop.has(batch.outputIds[at])) {
          log.log("info", batch.requests[row], `stopped at token ${batch.outputIds[at]}`);
          const reason = { tag: "stop", val: "{{name}}" };
          verdicts.push({ row, action: { tag: "finish", val: { reason } } });
          break;
        }
      }
      start = end;
    }
    return verdicts;
  },

  close(requests) {},

  // The host makes these calls only if `wants` asks for them.
  changed(requests) {},
  pressure() {},
  answered(answers) {
    return [];
  },
  due(timeMs, requests) {
    return [];
  },
  exportState() {
    return new Uint8Array();
  },
  importState(version, state) {},
};
