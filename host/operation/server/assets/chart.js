// A chart of lines over the last minutes, as SVG. Labels are HTML beside it, because the drawing is stretched to its box.

import { h, setText, svg } from "./dom.js";
import { clock, duration } from "./format.js";

const [WIDTH, HEIGHT] = [600, 100];

export class Chart {
  // `series` is a list of {name, of}: the figures of the history that a line is the sum of. The first is drawn thickest. `format`
  // makes a figure with its unit.
  constructor(title, series, format) {
    this.format = format;
    this.history = null;
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", focusable: "false" });
    this.max = h("span", { class: "axis top" });
    this.when = h("span", { class: "when" });
    this.legend = h("dl", { class: "legend" });
    this.node = h(
      "figure",
      { class: "chart" },
      h("figcaption", null, title, this.legend),
      h("div", { class: "plot" }, this.drawing, this.max, h("span", { class: "axis bottom" }, "0"), this.when, h("span", { class: "when now" }, "now")),
    );
    this.title = title;
    this.pointed = null;
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.set(series);
  }

  set(series) {
    this.series = series;
    this.lines = series.map((_, at) => svg("path", { class: `line line-${at}`, "vector-effect": "non-scaling-stroke" }));
    this.cursor = svg("path", { class: "cursor", "vector-effect": "non-scaling-stroke" });
    const grid = svg("path", { class: "grid", d: `M0 .5H${WIDTH}M0 50H${WIDTH}M0 99.5H${WIDTH}`, "vector-effect": "non-scaling-stroke" });
    this.drawing.replaceChildren(grid, ...this.lines.toReversed(), this.cursor);
    this.figures = series.map(() => h("dd"));
    this.legend.replaceChildren(
      ...series.map(({ name }, at) => h("div", null, h("dt", { class: `key line-${at}` }, name), this.figures[at])),
    );
  }

  // Draws what the history has of a stream.
  update(history, stream) {
    this.history = history;
    const figures = history.of(stream);
    const { points } = history.window;
    this.values = this.series.map(({ of }) => sum(of.map((figure) => figures[figure] ?? []), points));
    const most = this.values.flat().reduce((max, value) => (value > max ? value : max), 0);
    this.scale = nice(most);
    const y = (value) => (HEIGHT - 1 - (value / this.scale) * (HEIGHT - 4)).toFixed(1);
    this.lines.forEach((line, at) => {
      let path = "";
      let drawn = false;
      this.values[at].forEach((value, index) => {
        if (value === null) {
          drawn = false;
          return;
        }
        const x = ((WIDTH * index) / (points - 1)).toFixed(1);
        path += drawn ? `L${x} ${y(value)}` : `M${x} ${y(value)}h.01`;
        drawn = true;
      });
      line.setAttribute("d", path);
    });
    setText(this.max, most > 0 ? this.format(this.scale) : "");
    this.show();
    const last = this.series.map(({ name }, at) => `${name} ${this.format(this.values[at].at(-1))}`);
    this.drawing.setAttribute("aria-label", `${this.title}, now: ${last.join(", ")}`);
  }

  // Shows the figures of the time under the pointer.
  point(event) {
    const box = this.drawing.getBoundingClientRect();
    this.pointed = event ? Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) : null;
    const x = this.pointed === null ? null : (this.pointed * WIDTH).toFixed(1);
    this.cursor.setAttribute("d", x === null ? "" : `M${x} 0V${HEIGHT}`);
    if (this.history) this.show();
  }

  show() {
    const { window, end } = this.history;
    const index = Math.round((this.pointed ?? 1) * (window.points - 1));
    this.series.forEach((_, at) => setText(this.figures[at], this.format(this.values[at][index])));
    const at = end - (window.points - 1 - index) * window.step;
    setText(this.when, this.pointed !== null && end ? clock(at * 1000) : `${duration(window.points * window.step)} ago`);
  }
}

// The sums of several lists of points; null where none has a value.
function sum(lists, points) {
  const all = new Array(points).fill(null);
  for (const list of lists) list.forEach((value, at) => (all[at] = value === null ? all[at] : (all[at] ?? 0) + value));
  return all;
}

// The least of 1, 2, 2.5, 5 times a power of ten that is not below a value.
export function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
}
