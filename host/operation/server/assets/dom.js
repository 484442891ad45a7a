// Elements from plain values. Every text reaches the page as text: no function here reads markup.

const SVG = "http://www.w3.org/2000/svg";

// An element. `attributes` may have `class`, `on` (handlers by event), and any other attribute; null and false are left out.
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Sets a text only if it differs, so that a selection in an unchanged text stays.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
  return element;
}

export function setClass(element, name) {
  if (element.getAttribute("class") !== name) element.setAttribute("class", name);
}

// Makes the children of `parent` those of `items`, in their order. An element with a known key is updated, not replaced, so
// that it keeps the focus.
export function keyed(parent, items, key, make, update) {
  const known = new Map();
  for (const child of parent.children) known.set(child.dataset.key, child);
  let place = parent.firstElementChild;
  const used = new Map();
  for (const item of items) {
    const given = String(key(item));
    const times = used.get(given) ?? 0;
    used.set(given, times + 1);
    // Items with the same key are told apart by their order.
    const name = times ? `${given} ${times}` : given;
    let child = known.get(name);
    if (child) {
      known.delete(name);
    } else {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update?.(child, item);
  }
  for (const child of known.values()) child.remove();
}

// A table with a caption and column heads. A head is a text, or {text, title, number, long}. Roles are explicit because a narrow
// screen shows each row as a block, and a block has no role of a table.
export function table(caption, heads, { hidden = true, wide = false, name = null } = {}) {
  const body = h("tbody", { role: "rowgroup" });
  const cells = heads.map((head) => h("th", { scope: "col", role: "columnheader", class: head.number ? "number" : null, title: head.title }, head.text ?? head));
  const element = h(
    "table",
    { role: "table", class: [wide && "wide", name].filter(Boolean).join(" ") || null },
    h("caption", { class: hidden ? "unseen" : null }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, cells)),
    body,
  );
  // A region that scrolls can be reached by keyboard.
  const scroll = h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, element);
  return { node: scroll, body };
}

// A row with a cell for each head.
export function row(heads) {
  const cells = heads.map((head, at) =>
    h(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, role: at === 0 ? "rowheader" : "cell", class: head.number ? "number" : head.long ? "long" : null, "data-label": head.text ?? head }),
  );
  return h("tr", { role: "row" }, cells);
}

// Sets the contents of a row's cells: texts, or nodes.
export function fill(tr, contents) {
  contents.forEach((content, at) => {
    const cell = tr.children[at];
    if (content instanceof Node) {
      if (cell.firstChild !== content || cell.childNodes.length !== 1) cell.replaceChildren(content);
    } else {
      setText(cell, content ?? "");
    }
  });
}

// A state: a sign and a word, so that the colour is never the only difference.
const SIGNS = { good: "●", warn: "▲", bad: "■", off: "○" };

export function badge(kind, word) {
  return h("span", { class: `badge ${kind}` }, h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[kind]), word);
}

// Changes a cell's badge only if it differs.
export function setBadge(cell, kind, word) {
  const shown = `${kind} ${word}`;
  if (cell.dataset.badge === shown && cell.firstChild) return;
  cell.dataset.badge = shown;
  cell.replaceChildren(badge(kind, word));
}
