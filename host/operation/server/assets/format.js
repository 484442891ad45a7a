// Figures as text. A missing figure is an em dash.

export const NONE = "–";
const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

const is = (value) => typeof value === "number" && Number.isFinite(value);

// A whole number with separators: 1,234,567.
export function count(value) {
  return is(value) ? grouped.format(value) : NONE;
}

// A figure of three digits with a unit prefix from a million on: 12.3 M.
export function short(value) {
  if (!is(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e9) return `${three(value / 1e9)} G`;
  if (size >= 1e6) return `${three(value / 1e6)} M`;
  return grouped.format(value);
}

// A rate: whole from ten on, one decimal below.
export function rate(value) {
  if (!is(value)) return NONE;
  if (value >= 10 || value === 0) return short(value);
  return value < 0.05 ? "<0.1" : value.toFixed(1);
}

// Three digits.
function three(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

// A short time: 310 ns, 184 µs, 2.31 ms, 1.20 s, 4 min 3 s.
export function seconds(value) {
  if (!is(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 0) return `−${seconds(-value)}`;
  // Limits are where the digits would round up to the next unit.
  if (value < 999.5e-9) return `${Math.max(1, Math.round(value * 1e9))} ns`;
  if (value < 999.5e-6) return `${three(value * 1e6)} µs`;
  if (value < 0.9995) return `${three(value * 1e3)} ms`;
  return value < 59.995 ? `${three(value)} s` : duration(value);
}

// A long time in its two greatest units: 3 h 12 min.
export function duration(value) {
  if (!is(value)) return NONE;
  const whole = Math.max(0, Math.floor(value));
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => whole >= size);
  if (first < 0) return "0 s";
  const [name, size] = units[first];
  const next = units[first + 1];
  const rest = next ? Math.floor((whole % size) / next[1]) : 0;
  return `${grouped.format(Math.floor(whole / size))} ${name}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

export function bytes(value) {
  if (!is(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  let size = value;
  while (Math.abs(size) >= 1023.5 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${at === 0 ? grouped.format(size) : three(size)} ${units[at]}`;
}

export function percent(value) {
  return is(value) ? `${(value * 100).toFixed(value < 0.0995 ? 1 : 0)} %` : NONE;
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

// The date and the time of day here: 2026-11-25 22:41:03.
export function moment(time) {
  const date = new Date(time);
  if (time === null || time === undefined || Number.isNaN(date.getTime())) return NONE;
  const pad = (part) => String(part).padStart(2, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

// The time of day here: 22:41:03, with the date if it is not today's.
export function clock(time, now = new Date()) {
  const [day, at] = moment(time).split(" ");
  return at === undefined ? NONE : day === moment(now).split(" ")[0] ? at : `${day} ${at}`;
}

// Nanoseconds since the epoch of an RFC 3339 time; a Date has only milliseconds.
export function nanos(time) {
  const found = /^(.*?)(\.\d+)?(Z|[+-]\d\d:\d\d)$/.exec(String(time));
  const whole = found ? Date.parse(found[1] + found[3]) : NaN;
  if (Number.isNaN(whole)) return null;
  return BigInt(whole) * 1000000n + BigInt((found[2] ?? ".").slice(1).padEnd(9, "0").slice(0, 9));
}

// Seconds from one RFC 3339 time to another.
export function between(from, to) {
  const [start, end] = [nanos(from), nanos(to)];
  return start === null || end === null ? null : Number(end - start) / 1e9;
}

// The first 12 digits of a digest.
export function digest(text) {
  return text ? String(text).replace(/^sha256:/, "").slice(0, 12) : NONE;
}

// Counts by name: "hold 12, release 3".
export function counts(each) {
  const parts = Object.entries(each ?? {}).filter(([, value]) => value > 0);
  return parts.length ? parts.map(([name, value]) => `${name} ${short(value)}`).join(", ") : "none";
}
