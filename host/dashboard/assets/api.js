// Requests to the admin API. The token stays in this module's memory: no storage has it, and no address.

let token = null;

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

export async function get(path, signal) {
  return answer(await fetch(path, { signal, cache: "no-store" }));
}

export function hasToken() {
  return token !== null;
}

// Sends a change. Asks for the token if the server wants one; null if the reader of the page cancels.
export async function change(path, body) {
  for (let why = ""; ; ) {
    const headers = { "content-type": "application/json" };
    if (token !== null) headers.authorization = `Bearer ${token}`;
    try {
      return await answer(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 401) throw error;
      why = token === null ? "" : "The last token was refused.";
      token = null;
      token = await ask(why);
      if (token === null) return null;
    }
  }
}

function ask(why) {
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
