// The figures of the last hour or day, as the server keeps them: this page has no others.

import { get } from "./api.js";

// The times that the charts can show. `every`: seconds between two drawings, about a pixel.
export const WINDOWS = [
  { name: "10 minutes", by: "second", step: 1, points: 600, every: 1 },
  { name: "1 hour", by: "second", step: 1, points: 3600, every: 6 },
  { name: "1 day", by: "minute", step: 60, points: 1440, every: 60 },
];

export class History {
  constructor() {
    this.show(WINDOWS[0]);
  }

  // Shows another window. The next status brings its points.
  show(window) {
    this.window = window;
    this.streams = {};
    // The time of the newest points; 0: none has been asked for.
    this.end = 0;
    this.asking = null;
  }

  // Gets the points up to a status. Returns whether there are new ones.
  async follow({ history_end: end, pid, started }) {
    const process = `${pid} ${started}`;
    // Another process may know less, and a clock may be set back.
    if (process !== this.process || end < this.end) this.show(this.window);
    this.process = process;
    const { by, step, points } = this.window;
    const newest = step === 1 ? end : (Math.floor(end / step) - 1) * step;
    const missing = (newest - this.end) / step;
    if (!(missing > 0) || this.asking) return false;
    // The server may read once more until it answers.
    const asking = get(`/v1/status/history?by=${by}&last=${Math.min(points, missing + 2)}`);
    this.asking = asking;
    try {
      const answer = await asking;
      // The window has changed since the question.
      if (this.asking !== asking) return false;
      this.add(answer);
      return true;
    } catch {
      // The next status asks again.
      return false;
    } finally {
      if (this.asking === asking) this.asking = null;
    }
  }

  add({ end, streams }) {
    const { points, step } = this.window;
    const fresh = Math.min(points, (end - this.end) / step);
    const none = (length) => new Array(length).fill(null);
    const joined = {};
    for (const [stream, figures] of Object.entries(streams)) {
      const before = this.streams[stream] ?? {};
      joined[stream] = {};
      for (const figure of new Set([...Object.keys(before), ...Object.keys(figures)])) {
        const known = before[figure] ?? none(points);
        joined[stream][figure] = known.slice(fresh).concat((figures[figure] ?? none(fresh)).slice(-fresh));
      }
    }
    this.streams = joined;
    this.end = end;
  }

  of(stream) {
    return this.streams[stream] ?? {};
  }
}
