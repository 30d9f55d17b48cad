// The page: its views, its theme, and the stream of snapshots that feeds them.

import { base } from "./api.js";
import { Charts, figuresOf } from "./charts.js";
import { Chat } from "./chat.js";
import { byId, setHidden, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { forgetColors } from "./holders.js";
import { History } from "./history.js";
import { KeyDialog } from "./keys.js";
import { PageMap } from "./pagemap.js";
import { Pools } from "./pool.js";
import { Pressure } from "./pressure.js";
import { Requests } from "./requests.js";
import { Sessions } from "./sessions.js";
import { Tiles } from "./tiles.js";

const THEME = "ebbtide-theme";
const NOTICE_MS = 6000;
const DRAW_EVERY_MS = 450; // charts and timeline
const VIEWS = ["memory", "sessions", "chat"];

const history = new History();
const tiles = new Tiles(byId("tiles"));
const pools = new Pools(byId("pools"));
const pageMap = new PageMap();
const charts = new Charts(byId("charts"));
const pressure = new Pressure();
const requests = new Requests(notify);
const sessions = new Sessions();
const chat = new Chat();
let hello = null;
let last = null;
let noticeTimer = 0;
let rates = null;
let latency = null;
let frame = 0;
let drawnAt = 0;

const seconds = () => Number(byId("window").value);

function notify(text) {
  clearTimeout(noticeTimer);
  setText(byId("notice"), text);
  setHidden(byId("notice"), false);
  noticeTimer = setTimeout(() => setHidden(byId("notice"), true), NOTICE_MS);
}

function status(state, text) {
  byId("status").dataset.state = state;
  setText(byId("status-text"), text);
}

const feed = new Feed({
  state(state, message) {
    if (state === "refused") {
      status("bad", "API key required");
      keyDialog.refused();
    } else if (state === "lost") {
      status("bad", "Disconnected");
      byId("status").title = message;
    } else if (state === "connecting" && !last) {
      status("wait", "Connecting");
    }
  },
  hello(message) {
    if (hello && hello.model !== message.model) pressure.reset();
    hello = message;
    const device = hello.device === "none" ? [] : [hello.device, hello.dtype];
    setText(byId("model"), [hello.model, ...device].join(" · "));
    setText(byId("version"), `ebbtide ${hello.version}`);
    document.title = `${hello.model} · ebbtide console`;
    pools.hello(hello);
    pageMap.hello(hello);
    chat.hello(hello);
  },
  snapshot(snapshot) {
    last = snapshot;
    rates = history.add(snapshot, figuresOf(snapshot));
    if (snapshot.latency) latency = snapshot.latency;
    frame ||= requestAnimationFrame(render);
  },
  pressure: (message) => pressure.add(message),
  end: () => status("wait", "Shutting down"),
});

const keyDialog = new KeyDialog(() => {
  pressure.reset();
  feed.connect();
});

const words = (code) => code.charAt(0).toUpperCase() + code.slice(1).replaceAll("_", " ");

// Show the last snapshot. Earlier ones that have not been shown are skipped, so that a slow machine keeps up.
function render(now) {
  frame = 0;
  const ready = last.status === "ready";
  status(ready ? "good" : "wait", ready ? "Ready" : words(last.status));
  byId("status").title = last.reason;
  tiles.show({ ...last, latency }, rates, hello);
  pools.show(last.load);
  requests.show(last, hello);
  sessions.show(last, hello);
  if (now - drawnAt >= DRAW_EVERY_MS) draw();
  document.body.dataset.snapshot = String(last.number);
}

function draw() {
  drawnAt = performance.now();
  charts.show(history, seconds());
  pressure.draw(last?.time, seconds());
}

function showView(moveFocus) {
  const wanted = location.hash.slice(1);
  const name = VIEWS.includes(wanted) ? wanted : VIEWS[0];
  for (const section of document.querySelectorAll("[data-view]")) section.hidden = section.dataset.view !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (last) draw();
  if (moveFocus) byId("content").focus({ preventScroll: true });
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  byId("theme").value = theme;
  forgetColors();
  charts.restyle();
  if (last) draw();
  pageMap.draw();
}

byId("theme").addEventListener("change", (event) => {
  localStorage.setItem(THEME, event.target.value);
  setTheme(event.target.value);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(byId("theme").value));
byId("window").addEventListener("change", draw);
window.addEventListener("hashchange", () => showView(true));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash names the view
  byId("content").focus();
});
for (const link of document.querySelectorAll(".foot a")) link.href = new URL(link.getAttribute("href"), base).href;

setTheme(localStorage.getItem(THEME) ?? "");
showView(false);
if (!document.hidden) feed.connect();
