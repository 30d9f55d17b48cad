// A map of one pool's pages, read when the operator asks for it.

import { call } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { HOLDERS, color, holderColor } from "./holders.js";

const MOST_PAGES = 65536;
const MAP_HEIGHT = 170;
const NAMES = Object.fromEntries(HOLDERS.map(({ key, name }) => [key, name]));

export class PageMap {
  constructor() {
    this.area = byId("map");
    this.button = byId("map-button");
    this.refresh = byId("map-refresh");
    this.pools = [];
    this.maps = [];
    this.button.addEventListener("click", () => this.toggle());
    this.refresh.addEventListener("click", () => this.read());
    window.addEventListener("resize", () => this.draw());
  }

  hello(hello) {
    this.pools = [...Object.keys(hello.pools), ...(hello.host_pages ? ["host"] : [])];
    this.button.disabled = !hello.may_control;
    if (!hello.may_control) {
      setText(byId("map-note"), "The page map needs the admin key.");
      if (!this.area.hidden) this.toggle();
    }
  }

  toggle() {
    const shows = this.area.hidden;
    this.area.hidden = this.refresh.hidden = !shows;
    this.button.setAttribute("aria-expanded", String(shows));
    setText(this.button, shows ? "Hide the page map" : "Show the page map");
    if (shows) this.read();
    else setText(byId("map-note"), "");
  }

  async read() {
    this.refresh.disabled = true;
    try {
      this.maps = [];
      for (const pool of this.pools) this.maps.push(await readPool(pool));
      this.show();
      setText(byId("map-note"), `Read at ${new Date().toLocaleTimeString("en-GB")}`);
    } catch (error) {
      setText(byId("map-note"), error.message);
    } finally {
      this.refresh.disabled = false;
    }
  }

  show() {
    this.area.replaceChildren(...this.maps.map((map) => this.create(map)));
    this.draw();
  }

  create(map) {
    map.canvas = h("canvas", { role: "img", "aria-label": `Map of ${plural(map.pages.length, "page")} of pool ${map.pool}; the table names the largest holders` });
    map.tip = h("p", { class: "hint tip" }, "Point at a page to see its holder.");
    map.canvas.addEventListener("mousemove", (event) => this.point(map, event));
    map.canvas.addEventListener("mouseleave", () => this.select(map, null));
    return h("div", { class: "map" }, h("div", { class: "map-canvas" }, map.canvas, map.tip), largest(map));
  }

  draw() {
    if (!this.area.hidden) this.maps.forEach((map) => paint(map));
  }

  point(map, event) {
    const box = map.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / map.cell);
    const page = Math.floor((event.clientY - box.top) / map.cell) * map.columns + column;
    this.select(map, column < map.columns ? (map.pages[page] ?? null) : null, page);
  }

  select(map, holder, page = 0) {
    const who = holder?.holder ? ` · ${holder.holder}` : "";
    setText(map.tip, holder ? `Page ${page} · ${NAMES[holder.kind]}${who}` : "Point at a page to see its holder.");
    const marked = holder?.holder ?? "";
    if (marked !== map.marked) {
      map.marked = marked;
      paint(map);
    }
  }
}

async function readPool(pool) {
  const pages = [];
  let total = 1;
  while (pages.length < Math.min(total, MOST_PAGES)) {
    const part = await (await call(`console/pages?pool=${encodeURIComponent(pool)}&first=${pages.length}`)).json();
    if (!part.num_pages) break;
    total = part.total_pages;
    for (const [number, kind, holder] of part.runs) {
      const run = { kind, holder };
      for (let index = 0; index < number; index += 1) pages.push(run);
    }
  }
  return { pool, pages, total, marked: "" };
}

// Neighbouring holders of one kind differ in brightness.
function shade(holder) {
  let sum = 0;
  for (const letter of holder) sum = (sum * 31 + letter.charCodeAt(0)) % 997;
  return 0.62 + 0.38 * ((sum % 4) / 3);
}

function paint(map) {
  const { canvas, pages } = map;
  const width = canvas.parentElement.clientWidth;
  if (!width || !pages.length) return;
  map.cell = Math.max(Math.min(Math.floor(Math.sqrt((width * MAP_HEIGHT) / pages.length)), 16), 3);
  map.columns = Math.floor(width / map.cell);
  const height = Math.ceil(pages.length / map.columns) * map.cell;
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const colors = Object.fromEntries(HOLDERS.map(({ key }) => [key, holderColor(key)]));
  const gap = map.cell > 5 ? 1 : 0;
  pages.forEach(({ kind, holder }, page) => {
    context.globalAlpha = map.marked && holder !== map.marked ? 0.25 : holder ? shade(holder) : 1;
    context.fillStyle = colors[kind] ?? color("muted");
    context.fillRect((page % map.columns) * map.cell, Math.floor(page / map.columns) * map.cell, map.cell - gap, map.cell - gap);
  });
}

function largest({ pages, pool, total }) {
  const held = new Map();
  for (const { kind, holder } of pages) {
    const key = `${kind}\n${holder}`;
    held.set(key, (held.get(key) ?? 0) + 1);
  }
  const rows = [...held].sort((left, right) => right[1] - left[1]).slice(0, 8).map(([key, number]) => {
    const [kind, holder] = key.split("\n");
    return h("tr", {}, h("th", { scope: "row" }, h("span", { class: `swatch holder-${kind}`, "aria-hidden": "true" }), NAMES[kind]), h("td", { class: "id" }, holder || "–"), h("td", { class: "num" }, count(number)));
  });
  const shown = pages.length < total ? `, the first ${count(pages.length)} of ${count(total)} pages` : "";
  return h("div", { class: "map-table" }, h("table", {}, h("caption", {}, `Largest holders in pool ${pool}${shown}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Part"), h("th", { scope: "col" }, "Request or session"), h("th", { scope: "col", class: "num" }, "Pages"))),
    h("tbody", {}, ...rows)));
}
