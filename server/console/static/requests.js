// The running and waiting requests: ids and sizes, never prompts.

import { call } from "./api.js";
import { byId, h, setHidden, setText, Table } from "./dom.js";
import { count, duration, plural } from "./format.js";

const CONFIRM_MS = 4000;

export class Requests {
  constructor(notify) {
    this.notify = notify;
    const columns = [
      { title: "State", create: () => h("span", { class: "tag" }), update: (tag, req) => { setText(tag, req.state); tag.dataset.state = req.state; } },
      { title: "Request", class: "id", text: (req) => req.rid },
      { title: "Age", number: true, text: (req) => duration(req.age_s) },
      { title: "Prompt", number: true, text: (req) => count(req.prompt_tokens) },
      { title: "Output", number: true, text: (req) => `${count(req.output_tokens)} / ${count(req.max_tokens)}` },
      { title: "Pages", number: true, text: (req) => count(req.num_pages) },
      { title: "Retractions", number: true, text: (req) => (req.protected ? `${req.num_retractions}, protected` : String(req.num_retractions)) },
      { title: "Action", create: (req) => this.button(req), update: (button, req) => setHidden(button, !req.abortable) },
    ];
    this.table = new Table(byId("requests"), "Running and waiting requests; prompt and output in tokens", columns, (req) => req.rid);
    this.empty = h("p", { class: "empty" });
    byId("requests").append(this.empty);
  }

  show(snapshot, hello) {
    const requests = snapshot.requests ?? [];
    this.table.show(requests);
    const open = snapshot.load.num_running_reqs + snapshot.load.num_queue_reqs;
    const whose = hello.may_control ? "" : " Requests of other keys are not shown.";
    setText(byId("requests-hint"), requests.length ? `${count(requests.length)} of ${plural(open, "request")}.${whose}` : whose);
    setText(this.empty, snapshot.requests === null ? "The engine has not answered yet." : "No request runs or waits. Send one from the Chat view, or run “ebbtide bench”.");
    setHidden(this.empty, requests.length > 0);
  }

  button(req) {
    const button = h("button", { type: "button", class: "small", "aria-label": `Abort request ${req.rid}` }, "Abort");
    let timer = 0;
    const calm = () => {
      setText(button, "Abort");
      button.classList.remove("danger");
    };
    button.addEventListener("click", () => {
      clearTimeout(timer);
      if (button.classList.contains("danger")) {
        calm();
        this.abort(req.rid);
        return;
      }
      setText(button, "Really?");
      button.classList.add("danger");
      timer = setTimeout(calm, CONFIRM_MS);
    });
    return button;
  }

  async abort(rid) {
    try {
      const reply = await (await call("abort_request", { method: "POST", body: { rid } })).json();
      this.notify(reply.num_aborted ? `Request ${rid} was aborted.` : `Request ${rid} had already ended.`);
    } catch (error) {
      this.notify(error.message);
    }
  }
}
