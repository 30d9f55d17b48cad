// Builds and updates elements. Strings are inserted as text, never as HTML.

export const byId = (id) => document.getElementById(id);

// h("td", {class: "num", onclick: f, "aria-label": "x"}, child, "text", …)
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

// A list of child elements by key: elements that stay are not created again, so that they keep the focus.
export class KeyedList {
  constructor(parent, create, update) {
    this.parent = parent;
    this.create = create;
    this.update = update;
    this.shown = new Map();
  }

  show(items, keyOf) {
    const keys = new Set(items.map(keyOf));
    for (const [key, element] of this.shown) {
      if (!keys.has(key)) {
        element.remove();
        this.shown.delete(key);
      }
    }
    let next = this.parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      let element = this.shown.get(key);
      if (!element) {
        element = this.create(item);
        this.shown.set(key, element);
      }
      this.update(element, item);
      if (element === next) next = next.nextElementSibling;
      else this.parent.insertBefore(element, next);
    }
  }
}

// A table with a keyed body. columns: {title, number, cell(item) -> text or element updater}.
export class Table {
  constructor(parent, caption, columns, keyOf) {
    this.keyOf = keyOf;
    const head = h("tr", {}, ...columns.map((column) => h("th", { scope: "col", class: column.number ? "num" : null }, column.title)));
    const body = h("tbody");
    this.element = h("table", {}, h("caption", { class: "sr" }, caption), h("thead", {}, head), body);
    parent.append(this.element);
    this.rows = new KeyedList(
      body,
      (item) => h("tr", {}, ...columns.map((column, index) => this.newCell(column, index, item))),
      (row, item) => columns.forEach((column, index) => this.updateCell(row.children[index], column, item)),
    );
  }

  newCell(column, index, item) {
    const cell = h(index ? "td" : "th", { class: column.number ? "num" : column.class, scope: index ? null : "row" });
    if (column.create) cell.append(column.create(item));
    return cell;
  }

  updateCell(cell, column, item) {
    if (column.update) column.update(cell.firstElementChild, item);
    else setText(cell, column.text(item));
  }

  show(items) {
    setHidden(this.element, items.length === 0);
    this.rows.show(items, this.keyOf);
  }
}
