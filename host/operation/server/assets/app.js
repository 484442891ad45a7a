// The views by the address's hash, the connection, and the theme.

import { get } from "./api.js";
import { badge, h, setText } from "./dom.js";
import { clock, duration } from "./format.js";
import { History } from "./history.js";
import { Live } from "./live.js";
import { NowView } from "./now.js";
import { PluginsView } from "./plugins.js";
import { RequestView } from "./request.js";
import { RequestsView } from "./requests.js";
import { StepsView } from "./steps.js";

const main = document.getElementById("main");
// What every view knows: the newest status, and the figures up to it.
const known = { status: null, history: new History() };
let view = null;

// #/requests/RID?… as {name, rest, query}.
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, ...rest] = path.split("/");
  let rid = rest.join("/");
  try {
    rid = decodeURIComponent(rid);
  } catch {
    // A hash that somebody typed: taken as it is.
  }
  return { name: name || "now", rest: rid, query: new URLSearchParams(query) };
}

function show() {
  const { name, rest, query } = place();
  // A view that can take the new place itself keeps its focus.
  if (view?.moved?.(name, rest, query)) return;
  view?.leave?.();
  view = made(name, rest, query);
  main.replaceChildren(view.node);
  document.title = `${view.title} · Afterbay`;
  const shown = ["requests", "steps", "plugins"].includes(name) ? name : "now";
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (known.status) view.update?.(known.status);
}

function made(name, rest, query) {
  if (name === "requests") return rest ? new RequestView(rest, query, known) : new RequestsView(query, known);
  if (name === "steps") return new StepsView(query);
  if (name === "plugins") return new PluginsView(known);
  return new NowView(known);
}

function take(status) {
  known.status = status;
  // A page in the background asks for nothing and paints nothing.
  if (document.hidden) return;
  about(status);
  view?.update?.(status);
  known.history.follow(status).then((isNew) => isNew && view?.draw?.());
}

function about(status) {
  const { version, commit, pid, uptime_seconds: uptime } = status;
  const parts = [`Afterbay ${version}${commit ? ` (${commit})` : ""}`, `process ${pid}`, `running for ${duration(uptime)}`];
  setText(document.getElementById("process"), parts.join(" · "));
}

const connection = document.getElementById("connection");

function connected({ connected, since, why }) {
  const words = known.status ? `not connected since ${clock(since)}` : "not connected";
  connection.replaceChildren(connected ? badge("good", "live") : badge("bad", words));
  connection.title = why;
  document.body.classList.toggle("stale", !connected);
  if (!connected) {
    // The role status reads this aloud once for each change.
    if (why) connection.append(h("span", { class: "why" }, `: ${why}`));
    if (!known.status) view?.lost?.(why);
  }
}

const THEMES = ["auto", "light", "dark"];
const button = document.getElementById("theme");

function theme(name) {
  document.documentElement.dataset.theme = name;
  setText(button, `Theme: ${name}`);
}

button.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  theme(next);
  try {
    localStorage.setItem("theme", next);
  } catch {
    // A browser that stores nothing: the choice lasts until the page is closed.
  }
});

let stored = null;
try {
  stored = localStorage.getItem("theme");
} catch {
  // As above.
}
theme(THEMES.includes(stored) ? stored : "auto");

document.querySelector(".skip").addEventListener("click", (event) => {
  // The hash is the view's.
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && known.status) take(known.status);
});
show();
connection.replaceChildren(badge("off", "connecting"));
// The first status need not wait for a whole second.
get("/v1/status").then((status) => known.status ?? take(status)).catch(() => {});
new Live(take, connected);
