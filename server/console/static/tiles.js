// The figures at the top.

import { h, setText } from "./dom.js";
import { count, duration, percent, plural, rate } from "./format.js";

const TILES = [
  ["output", "Output", "tokens/s"],
  ["running", "Running", ""],
  ["waiting", "Waiting", ""],
  ["retracted", "Retracted", ""],
  ["first_token", "First token", ""],
  ["token_gap", "Inter-token", ""],
];

export class Tiles {
  constructor(parent) {
    this.tiles = {};
    for (const [key, name, unit] of TILES) {
      const value = h("span", { class: "value num" }, "–");
      const note = h("dd", { class: "hint" });
      parent.append(h("div", { class: "tile", "data-tile": key }, h("dt", {}, name), h("dd", {}, value, unit ? h("span", { class: "unit" }, unit) : null), note));
      this.tiles[key] = { value, note };
    }
  }

  set(key, value, note) {
    setText(this.tiles[key].value, value);
    setText(this.tiles[key].note, note);
  }

  show(snapshot, rates, hello) {
    const { load, totals, latency } = snapshot;
    this.set("output", rates ? rate(rates.output) : "–", `${rates ? rate(rates.prompt) : "–"} prompt tokens/s, ${percent(snapshot.cache_hit_rate)} cached`);
    this.set("running", count(load.num_running_reqs), `of at most ${count(hello.max_running_requests)}`);
    this.set("waiting", count(load.num_queue_reqs), plural(snapshot.open_http_requests, "open HTTP request"));
    this.set("retracted", count(load.num_retracted_reqs), `now; ${plural(totals.retractions, "retraction")} so far`);
    if (!latency) return;
    for (const key of ["first_token", "token_gap"]) {
      const minute = latency.minute[key];
      this.set(key, duration(minute?.p50_s), minute ? `median; 95 % ≤ ${duration(minute.p95_s)}, last minute` : "no token in the last minute");
    }
  }
}
