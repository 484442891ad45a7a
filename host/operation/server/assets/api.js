// Requests to the admin API. The token stays in this module's memory: no storage has it, and no address for longer than a moment.

let token = null;

// A launcher's link ends in #token=…, which a browser sends to no server. The address and the history forget it at once.
const linked = /^#token=([!-~]+)$/.exec(location.hash);
if (linked !== null) {
  token = linked[1];
  history.replaceState(null, "", location.pathname);
}

export class Refused extends Error {
  constructor(status, code, words) {
    super(words);
    this.status = status;
    this.code = code;
  }
}

async function answer(response) {
  const text = await response.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // An answer of another server, such as a proxy.
  }
  if (response.ok && body !== null) return body;
  const words = body?.error ?? (response.ok ? "the answer is no JSON" : text.slice(0, 200) || response.statusText);
  throw new Refused(response.status, body?.code ?? "", words);
}

// Asks the server. Asks for the token if the server wants one.
async function send(path, init) {
  for (;;) {
    const used = token;
    const headers = used === null ? init.headers : { ...init.headers, authorization: `Bearer ${used}` };
    try {
      return await answer(await fetch(path, { cache: "no-store", ...init, headers }));
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 401) throw error;
      // Another call may have asked meanwhile.
      if (token === used) token = await ask(used === null ? "" : "The last token was refused.");
      if (token === null) throw error;
    }
  }
}

// After a cancelled question, reading does not ask again by itself.
let cancelled = false;

export async function get(path, signal) {
  const init = { signal, headers: {} };
  if (cancelled && token === null) return answer(await fetch(path, { cache: "no-store", ...init }));
  return send(path, init);
}

// Sends a change; null if the reader of the page cancels the question for the token.
export async function change(path, body) {
  try {
    return await send(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  } catch (error) {
    if (error instanceof Refused && error.status === 401) return null;
    throw error;
  }
}

// Asks for the token, for an answer that shows more with it. Returns whether the reader of the page gave one.
export async function unlock() {
  token = (await ask("")) ?? token;
  return token !== null;
}

let asking = null;

// The token that the reader of the page gives; null if the reader cancels. Calls at the same time share one question.
function ask(why) {
  asking ??= question(why).then((given) => {
    asking = null;
    cancelled = given === null;
    return given;
  });
  return asking;
}

function question(why) {
  const dialog = document.getElementById("token");
  const input = document.getElementById("token-text");
  document.getElementById("token-why").textContent = why;
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener(
      "close",
      () => {
        const text = input.value.trim();
        input.value = "";
        done(dialog.returnValue === "send" && text ? text : null);
      },
      { once: true },
    );
  });
}
