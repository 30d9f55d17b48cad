// Shows one bar per pool: its accounting in tokens.

import { h, KeyedList, setHidden, setText } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { HOLDERS } from "./holders.js";

export class Pools {
  constructor(parent) {
    this.sizes = {};
    this.list = new KeyedList(parent, (pool) => this.create(pool), (element, pool) => this.update(element, pool));
  }

  hello(hello) {
    this.sizes = { ...hello.pools };
    if (hello.host_pages) this.sizes.host = { num_pages: hello.host_pages, page_size: hello.page_size };
  }

  show(load) {
    const pools = Object.entries(load.pools).map(([name, books]) => ({ name, books }));
    this.list.show(pools.filter(({ name, books }) => name in this.sizes || books.total), (pool) => pool.name);
  }

  create({ name }) {
    const parts = HOLDERS.map(({ key }) => h("span", { class: `part holder-${key}`, "data-part": key }));
    const entries = HOLDERS.map(({ key, name: label, help }) =>
      h("li", { title: help, "data-entry": key },
        h("span", { class: `swatch holder-${key}`, "aria-hidden": "true" }),
        h("span", { class: "label" }, label), h("b", { class: "num" }), h("span", { class: "share num" })));
    return h("div", { class: "pool", "data-pool": name },
      h("div", { class: "pool-head" }, h("h3", {}, name === "host" ? "Host tier" : `Pool “${name}”`), h("p", { class: "hint" }), h("p", { class: "balance" })),
      h("div", { class: "bar", role: "img" }, ...parts),
      h("ul", { class: "legend" }, ...entries));
  }

  update(element, { name, books }) {
    const size = this.sizes[name];
    const quarantined = books.quarantined ?? 0;
    const total = books.total + quarantined;
    const sized = size ? size.num_pages * size.page_size : total;
    const [title, hint, balance] = element.querySelector(".pool-head").children;
    setText(hint, size ? `${plural(sized, "token")} in ${plural(size.num_pages, "page")} of ${size.page_size}` : plural(total, "token"));
    const balanced = total === sized;
    setText(balance, total === 0 ? "" : balanced ? `The parts add up to ${count(total)}` : `The parts add up to ${count(total)} of ${count(sized)}`);
    balance.classList.toggle("bad", !balanced && total > 0);
    const words = [];
    for (const { key, name: label } of HOLDERS) {
      const tokens = books[key] ?? 0;
      const part = element.querySelector(`[data-part="${key}"]`);
      part.style.flexGrow = String(tokens);
      part.dataset.tokens = String(tokens);
      setHidden(part, tokens === 0);
      const entry = element.querySelector(`[data-entry="${key}"]`);
      setText(entry.children[2], count(tokens));
      setText(entry.children[3], percent(tokens / Math.max(total, 1)));
      words.push(`${label} ${count(tokens)}`);
    }
    element.querySelector(".bar").setAttribute("aria-label", `${title.textContent}, tokens: ${words.join(", ")}`);
  }
}
