// The stream of statuses. An EventSource reconnects after a cut connection, but not after a refusal; this module does both.

// Statuses come once a second.
const LATE_MS = 4000;
const RETRY_MS = [1000, 2000, 5000, 10000];

export class Live {
  // `onStatus(status)` for each status, `onState({connected, since, why})` when the connection changes.
  constructor(onStatus, onState) {
    this.onStatus = onStatus;
    this.onState = onState;
    this.tries = 0;
    this.heard = 0;
    this.state = { connected: false, since: new Date(), why: "connecting" };
    this.open();
    setInterval(() => this.look(), 1000);
  }

  open() {
    this.source?.close();
    this.source = new EventSource("/v1/status/stream");
    this.opened = Date.now();
    this.source.addEventListener("status", (event) => {
      let status;
      try {
        status = JSON.parse(event.data);
      } catch {
        return;
      }
      this.heard = Date.now();
      this.tries = 0;
      this.become(true, "");
      this.onStatus(status);
    });
    this.source.addEventListener("error", () => {
      this.become(false, "");
      if (this.source.readyState === EventSource.CLOSED) this.again();
    });
  }

  again() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), RETRY_MS[Math.min(this.tries, RETRY_MS.length - 1)]);
    this.tries += 1;
    // An EventSource does not tell why it was refused.
    fetch("/v1/status", { cache: "no-store" })
      .then(async (response) => {
        const why = response.ok ? "the server sends to too many pages already" : ((await response.json()).error ?? "");
        if (!this.state.connected) this.become(false, why);
      })
      .catch(() => {});
  }

  look() {
    const last = Math.max(this.heard, this.opened);
    if (Date.now() - last < LATE_MS) return;
    this.become(false, "");
    // A connection whose other end has vanished without a word.
    if (Date.now() - last > 3 * LATE_MS && this.source.readyState === EventSource.OPEN) {
      this.opened = Date.now();
      this.open();
    }
  }

  become(connected, why) {
    if (this.state.connected === connected && this.state.why === why) return;
    const since = this.state.connected === connected ? this.state.since : new Date(!connected && this.heard ? this.heard : Date.now());
    this.state = { connected, since, why };
    this.onState(this.state);
  }
}
