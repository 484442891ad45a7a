// Runs the source that was saved last. `afterbay run --dev` puts this file and the project into one component.
//
// The component's environment holds the source that was saved after that build, as the text of a function. Without it, the
// source of the build runs.
import * as built from "../../src/plugin.js";
import * as environment from "wasi:cli/environment@0.2.0";
/* imports */

const FILE = "src/plugin.js";
let current;

function loaded() {
  if (!current) {
    const saved = environment.default.getEnvironment().find(([name]) => name === FILE);
    current = saved ? (0, eval)(saved[1])(INTERFACES) : built;
  }
  return current.plugin;
}

function call(name, args) {
  try {
    return loaded()[name](...args);
  } catch (error) {
    // The engine has no name for the text.
    if (error instanceof Error) error.stack = error.stack.replaceAll("<input>", FILE);
    throw error;
  }
}

export const plugin = new Proxy({}, { has: () => true, get: (_, name) => (...args) => call(name, args) });
