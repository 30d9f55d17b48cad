// Keeps one stream of snapshots open while the page is visible, and connects again when it breaks.

import { ApiError, call, events } from "./api.js";

const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 8000;
const SILENCE_MS = 6000; // the server sends four snapshots a second

export class Feed {
  // on: functions by event name, and "state" with one of connecting, open, lost, refused, hidden.
  constructor(on) {
    this.on = on;
    this.retryMs = FIRST_RETRY_MS;
    this.timer = 0;
    this.abort = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.connect()));
  }

  connect() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = new AbortController();
    this.read(this.abort);
  }

  pause() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
    this.on.state("hidden");
  }

  async read(abort) {
    this.on.state("connecting");
    let silence = 0;
    try {
      const response = await call("console/events", { signal: abort.signal });
      for await (const event of events(response)) {
        if (abort !== this.abort) return;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENCE_MS);
        this.retryMs = FIRST_RETRY_MS;
        if (event.name === "hello") this.on.state("open");
        this.on[event.name]?.(JSON.parse(event.data));
      }
      if (abort === this.abort) this.lost("The server has closed the connection.");
    } catch (error) {
      if (abort !== this.abort) return; // replaced or paused
      if (error instanceof ApiError && error.status === 401) this.on.state("refused", error.message);
      else this.lost(error instanceof ApiError ? error.message : "The server cannot be reached.");
    } finally {
      clearTimeout(silence);
    }
  }

  lost(message) {
    this.on.state("lost", message);
    this.timer = setTimeout(() => this.connect(), this.retryMs);
    this.retryMs = Math.min(2 * this.retryMs, LONGEST_RETRY_MS);
  }
}
