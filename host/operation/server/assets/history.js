// The figures of the last ten minutes, a point for each status. Only this page has them.

export const WINDOW_SECONDS = 600;
// Statuses that are further apart have a break between them.
const BREAK_SECONDS = 3.5;

export class History {
  constructor() {
    this.streams = new Map();
  }

  add(status) {
    const at = Date.parse(status.time) / 1000;
    if (!Number.isFinite(at)) return;
    const names = new Set();
    for (const stream of status.streams ?? []) {
      names.add(stream.name);
      const points = this.of(stream.name);
      const last = points.at(-1);
      // A clock that was set back begins again.
      if (last && last.at > at) points.length = 0;
      // The first status may come twice: as an answer, and from the stream.
      if (last && at - last.at < 0.5) points.pop();
      if (last && at - last.at > BREAK_SECONDS) points.push({ at: last.at + 0.001 });
      points.push(point(at, stream));
      while (points.length && points[0].at < at - WINDOW_SECONDS) points.shift();
    }
    for (const name of this.streams.keys()) if (!names.has(name)) this.streams.delete(name);
  }

  of(name) {
    if (!this.streams.has(name)) this.streams.set(name, []);
    return this.streams.get(name);
  }
}

function point(at, { rates, first_token_seconds, load: now, sinks, requests_live }) {
  const load = now?.freshness === "fresh" ? now : null;
  return {
    at,
    in: rates?.tokens_received,
    out: rates?.tokens_forwarded,
    p50: first_token_seconds?.p50,
    p99: first_token_seconds?.p99,
    running: load?.running,
    waiting: load?.waiting,
    live: requests_live,
    sinks: Object.fromEntries((sinks ?? []).map((sink) => [sink.name, sink.waiting_tokens])),
  };
}
