// Retraction events: a timeline, a list, and the victims of the selected event.

import { byId, h, KeyedList, setHidden, setText } from "./dom.js";
import { clock, count, duration, plural } from "./format.js";
import { color } from "./holders.js";

const MOST_EVENTS = 256;
const LISTED = 60;
const CAUSES = { memory: "Memory", priority: "Priority", test: "Test" };

export class Pressure {
  constructor() {
    this.events = new Map(); // by number
    this.chosen = null;
    this.canvas = byId("timeline");
    this.detail = byId("event-detail");
    this.list = new KeyedList(byId("events"), (event) => this.createItem(event), (item, event) => this.updateItem(item, event));
    this.canvas.addEventListener("click", (event) => this.pick(event));
    this.showDetail();
  }

  reset() {
    this.events.clear();
  }

  add({ num_total: total, events }) {
    for (const event of events) this.events.set(event.number, event);
    while (this.events.size > MOST_EVENTS) this.events.delete(this.events.keys().next().value);
    if (this.chosen) this.chosen = this.events.get(this.chosen.number) ?? this.chosen;
    const newest = [...this.events.values()].slice(-LISTED).reverse();
    this.list.show(newest, (event) => event.number);
    setText(byId("pressure-hint"), total ? `${plural(total, "event")} since the start` : "");
    setText(byId("no-events"), "No request has been retracted. A retraction appears here when the next step does not fit into the pool.");
    setHidden(byId("no-events"), newest.length > 0);
    this.showDetail();
  }

  createItem(event) {
    const button = h("button", { type: "button", onclick: () => this.choose(event.number) },
      h("span", { class: "time num" }), h("span", { class: "what" }), h("span", { class: "back" }));
    return h("li", {}, button);
  }

  updateItem(item, event) {
    const button = item.firstElementChild;
    const [time, what, back] = button.children;
    setText(time, clock(event.time));
    setText(what, summary(event));
    setText(back, outcome(event));
    back.classList.toggle("waits", event.victims.some((victim) => victim.outcome === null));
    button.setAttribute("aria-current", String(this.chosen?.number === event.number));
  }

  choose(number) {
    this.chosen = this.events.get(number) ?? null;
    for (const [key, item] of this.list.shown) item.firstElementChild.setAttribute("aria-current", String(key === number));
    this.showDetail();
    this.draw();
  }

  showDetail() {
    const event = this.chosen;
    if (!event) {
      if (!this.detail.firstChild) this.detail.append(h("p", { class: "empty" }, "Select an event to see its victims, its cost, and when the victims ran again."));
      return;
    }
    const text = JSON.stringify(event);
    if (text === this.shownText) return;
    this.shownText = text;
    this.detail.replaceChildren(
      h("h3", {}, `Event ${event.number}, step ${count(event.step)}, ${clock(event.time)}`),
      h("dl", { class: "facts" },
        fact("Cause", CAUSES[event.cause] ?? event.cause),
        fact("Pool", event.pool),
        fact("Available", `${count(event.available_before)} → ${count(event.available_after)} tokens`),
        fact("New-token ratio", `${event.ratio_before.toFixed(3)} → ${event.ratio_after.toFixed(3)}`),
        fact("Still running", count(event.num_running)),
        fact("Waiting", count(event.num_waiting)),
        event.aborted ? fact("Aborted", event.aborted) : null),
      victims(event));
  }

  // The timeline shows the last ``seconds`` up to ``now``: a mark per event, and a bar until its last victim runs again or ends.
  draw(now = this.now, seconds = this.seconds) {
    this.now = now;
    this.seconds = seconds;
    const { canvas } = this;
    const width = canvas.clientWidth;
    if (!width || !now) return;
    const scale = window.devicePixelRatio || 1;
    const height = 96;
    if (canvas.width !== Math.round(width * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = height * scale;
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    axis(context, width, height, now, seconds);
    this.places = [];
    const x = (time) => width * (1 - (now - time) / seconds);
    let lane = 0;
    for (const event of this.events.values()) {
      const end = backAt(event) ?? now;
      if (end < now - seconds) continue;
      lane = (lane + 1) % 7;
      const y = 9 + lane * 10;
      const isChosen = this.chosen?.number === event.number;
      const stroke = color(isChosen ? "accent" : event.aborted ? "bad" : event.cause === "priority" ? "series-3" : "holder-uncached");
      const left = Math.max(x(event.time), 0);
      context.globalAlpha = 0.45;
      context.fillStyle = stroke;
      context.fillRect(left, y - 2, Math.max(x(end) - left, 1), 4);
      context.globalAlpha = 1;
      context.beginPath();
      context.arc(left, y, isChosen ? 5 : 3 + Math.min(event.victims.length - 1, 3) * 0.6, 0, 2 * Math.PI);
      context.fill();
      this.places.push({ number: event.number, x: left, y });
    }
    canvas.setAttribute("aria-label", `Timeline of retraction events: ${count(this.places.length)} in the last ${duration(seconds)}. The list names them.`);
  }

  pick(event) {
    const box = this.canvas.getBoundingClientRect();
    const distance = (place) => Math.hypot(place.x - (event.clientX - box.left), place.y - (event.clientY - box.top));
    const nearest = (this.places ?? []).reduce((best, place) => (!best || distance(place) < distance(best) ? place : best), null);
    if (nearest && distance(nearest) < 24) this.choose(nearest.number);
  }
}

function axis(context, width, height, now, seconds) {
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = color("muted");
  context.strokeStyle = color("grid");
  context.textBaseline = "bottom";
  const step = seconds <= 60 ? 10 : seconds <= 180 ? 30 : 120;
  for (let time = Math.ceil((now - seconds) / step) * step; time <= now; time += step) {
    const x = width * (1 - (now - time) / seconds);
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, height - 16);
    context.stroke();
    const text = new Date(time * 1000).toLocaleTimeString("en-GB");
    context.textAlign = x < 30 ? "left" : x > width - 30 ? "right" : "center";
    context.fillText(text, x, height);
  }
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", { class: "num" }, value));

function summary(event) {
  const freed = event.victims.reduce((sum, victim) => sum + victim.freed_tokens, 0);
  const cause = CAUSES[event.cause] ?? event.cause;
  const aborted = event.aborted ? ", last request aborted" : "";
  return `${cause}: ${plural(event.victims.length, "victim")}, ${plural(freed, "token")} freed${aborted}`;
}

// Returns the time at which the last victim ran again or ended; null if a victim still waits.
function backAt(event) {
  if (event.victims.some((victim) => victim.outcome === null)) return null;
  return event.time + Math.max(0, ...event.victims.map((victim) => victim.waited_s ?? 0));
}

function outcome(event) {
  const waiting = event.victims.filter((victim) => victim.outcome === null).length;
  if (waiting) return waiting === event.victims.length ? "waiting" : `${waiting} of ${event.victims.length} waiting`;
  const ended = event.victims.filter((victim) => victim.outcome !== "resumed").length;
  const after = duration(Math.max(0, ...event.victims.map((victim) => victim.waited_s ?? 0)));
  if (!event.victims.length) return "";
  return ended ? `${ended} ended while waiting` : `back after ${after}`;
}

function victimOutcome(victim) {
  if (victim.outcome === null) return "waiting";
  const after = victim.waited_s === null ? "" : ` after ${duration(victim.waited_s)}`;
  return victim.outcome === "resumed" ? `back${after}` : `ended (${victim.outcome})${after}`;
}

function victims(event) {
  if (!event.victims.length) return h("p", { class: "empty" }, "No request was retracted.");
  const titles = ["Request", "Prompt", "Output", "Freed", "To recompute", "Retractions", "Outcome"];
  const head = titles.map((title, index) => h("th", { scope: "col", class: index && index < 6 ? "num" : null }, title));
  const rows = event.victims.map((victim) =>
    h("tr", {}, h("th", { scope: "row", class: "id" }, victim.rid),
      ...[victim.prompt_tokens, victim.num_output_tokens, victim.freed_tokens].map((value) => h("td", { class: "num" }, count(value))),
      h("td", { class: "num" }, victim.offloaded ? "in the host tier" : count(victim.tokens_to_recompute)),
      h("td", { class: "num" }, count(victim.num_retractions)),
      h("td", {}, victimOutcome(victim))));
  return h("table", {}, h("caption", {}, "Victims; sizes in tokens"), h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows));
}
