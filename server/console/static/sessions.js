// The open sessions.

import { byId, h, setHidden, setText, Table } from "./dom.js";
import { count, duration, plural } from "./format.js";

export class Sessions {
  constructor() {
    const columns = [
      { title: "State", create: () => h("span", { class: "tag" }), update: (tag, session) => { setText(tag, session.state); tag.dataset.state = session.state; } },
      { title: "Session", class: "id", text: (session) => session.id },
      { title: "Kind", text: (session) => (session.streaming ? "streaming" : "tree of turns") },
      { title: "Turns", number: true, text: (session) => count(session.num_turns) },
      { title: "Tokens", number: true, text: (session) => count(session.num_tokens) },
      { title: "KV held", number: true, text: (session) => `${count(session.held_tokens)} tokens` },
      { title: "Idle", number: true, text: (session) => duration(session.idle_s) },
      { title: "Closes after", number: true, text: (session) => duration(session.timeout_s) },
    ];
    this.table = new Table(byId("sessions"), "Open sessions", columns, (session) => session.id);
    this.empty = h("p", { class: "empty" });
    byId("sessions").append(this.empty);
  }

  show(snapshot, hello) {
    const sessions = snapshot.sessions ?? [];
    this.table.show(sessions);
    const held = sessions.reduce((sum, session) => sum + session.held_tokens, 0);
    const more = snapshot.num_sessions > sessions.length ? `; the last ${count(sessions.length)} opened are shown` : "";
    const whose = hello.may_control ? "" : " Sessions of other keys are not shown.";
    setText(byId("sessions-hint"), (sessions.length ? `${plural(snapshot.num_sessions, "open session")}${more}, ${plural(held, "token")} of KV held.` : "") + whose);
    setText(this.empty, "No session is open. A session keeps a conversation on the server: POST /v1/sessions opens one.");
    setHidden(this.empty, sessions.length > 0);
  }
}
