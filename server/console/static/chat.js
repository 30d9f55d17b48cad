// A chat with the served model. Only the page stores the conversation.

import { base, call, events } from "./api.js";
import { byId, h, setHidden, setText } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";
import { asCurl, asPython } from "./snippets.js";

export class Chat {
  constructor() {
    this.model = "";
    this.turns = []; // {role, content}
    this.abort = null;
    this.settings = byId("settings");
    this.prompt = byId("prompt");
    this.messages = byId("messages");
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    });
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("chat-clear").addEventListener("click", () => this.clear());
    this.settings.addEventListener("submit", (event) => event.preventDefault());
    for (const form of [this.settings, byId("composer")]) form.addEventListener("input", () => this.showCode());
    for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button));
    this.clear();
  }

  hello(hello) {
    this.model = hello.model;
    this.hasKey = hello.key_required || hello.has_key;
    this.showCode();
  }

  clear() {
    this.abort?.abort();
    this.turns = [];
    this.sent = null;
    this.messages.replaceChildren(h("p", { class: "empty" }, "There are no messages yet. Answers are streamed from this server, which does not store them."));
    setText(byId("chat-stats"), "");
    this.showCode();
  }

  body(message) {
    const value = (name) => this.settings.elements[name].value.trim();
    const turns = [...this.turns];
    if (value("system")) turns.unshift({ role: "system", content: value("system") });
    if (message) turns.push({ role: "user", content: message });
    const body = { model: this.model, messages: turns };
    for (const name of ["temperature", "top_p", "max_tokens", "seed"]) if (value(name) !== "") body[name] = Number(value(name));
    if (value("stop")) body.stop = [value("stop")];
    return { ...body, stream: true, stream_options: { include_usage: true } };
  }

  showCode() {
    const message = this.prompt.value.trim();
    const body = message || !this.sent ? this.body(message || "What is a tide?") : this.sent;
    setText(byId("curl"), asCurl(new URL("v1/chat/completions", base).href, body, this.hasKey));
    setText(byId("python"), asPython(new URL("v1", base).href, body, this.hasKey));
  }

  async send() {
    const message = this.prompt.value.trim();
    if (!message || this.abort) return;
    if (!this.settings.reportValidity()) return;
    const body = this.body(message);
    this.sent = body;
    if (!this.turns.length) this.messages.replaceChildren();
    this.turns.push({ role: "user", content: message });
    this.add("user", message);
    this.prompt.value = "";
    await this.answer(body);
    this.showCode();
  }

  async answer(body) {
    const shown = this.add("assistant", "");
    const abort = (this.abort = new AbortController());
    setHidden(byId("stop"), false);
    setHidden(byId("send"), true);
    const answer = { text: "", reasoning: "", started: performance.now(), first: null, usage: null, finish: null };
    let problem = "";
    try {
      const response = await call("v1/chat/completions", { method: "POST", body, signal: abort.signal });
      for await (const event of events(response)) this.take(event, answer, shown);
    } catch (error) {
      problem = abort.signal.aborted ? "Stopped." : error.message;
    }
    this.abort = null;
    setHidden(byId("stop"), true);
    setHidden(byId("send"), false);
    shown.setAttribute("aria-busy", "false");
    if (problem) shown.append(h("p", { class: "error" }, problem));
    if (answer.text) this.turns.push({ role: "assistant", content: answer.text });
    else this.turns.pop();
    setText(byId("chat-stats"), stats(answer));
    this.prompt.focus();
  }

  take({ data }, answer, shown) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) answer.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) answer.finish = choice.finish_reason;
    answer.reasoning += choice.delta?.reasoning_content ?? "";
    answer.text += choice.delta?.content ?? "";
    if (answer.first === null && (answer.text || answer.reasoning)) answer.first = performance.now();
    const atEnd = this.messages.scrollHeight - this.messages.scrollTop - this.messages.clientHeight < 40;
    const [reasoning, text] = shown.querySelectorAll(".reasoning, .text");
    setHidden(reasoning, !answer.reasoning);
    setText(reasoning, answer.reasoning);
    setText(text, answer.text);
    if (atEnd) this.messages.scrollTop = this.messages.scrollHeight;
  }

  add(role, text) {
    const shown = h("article", { class: `message ${role}`, "aria-busy": role === "assistant" ? "true" : null },
      h("h3", {}, role === "user" ? "You" : this.model), h("p", { class: "reasoning", hidden: true }), h("p", { class: "text" }, text));
    this.messages.append(shown);
    this.messages.scrollTop = this.messages.scrollHeight;
    return shown;
  }
}

function stats({ started, first, usage, finish }) {
  if (first === null) return "";
  const seconds = (performance.now() - first) / 1000;
  const parts = [`first token after ${duration((first - started) / 1000)}`];
  if (usage) {
    const output = usage.completion_tokens;
    parts.unshift(`${plural(usage.prompt_tokens, "prompt token")} (${count(usage.prompt_tokens_details?.cached_tokens ?? 0)} cached), ${plural(output, "output token")}`);
    if (output > 1) parts.push(`${rate((output - 1) / seconds)} tokens/s`);
    const pressure = usage.ebbtide;
    if (pressure?.num_retractions) parts.push(`retracted ${count(pressure.num_retractions)}×, resumed without loss`);
  }
  if (finish === "length") parts.push("cut off at the maximum output");
  return parts.join(" · ");
}

async function copy(button) {
  const text = byId(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
    setText(button, "Copied");
  } catch {
    getSelection().selectAllChildren(byId(button.dataset.copy)); // without HTTPS there is no clipboard
    setText(button, "Selected");
  }
  setTimeout(() => setText(button, "Copy"), 1500);
}
