// The dialog that asks for the API key.

import { key } from "./api.js";
import { byId, setText } from "./dom.js";

export class KeyDialog {
  // changed: called after the key was set or forgotten.
  constructor(changed) {
    this.dialog = byId("key-dialog");
    this.input = byId("key-input");
    byId("key-button").addEventListener("click", () => this.open("Requests of this page send the key. With the admin key, the console shows every request and can abort it.", ""));
    byId("key-cancel").addEventListener("click", () => this.dialog.close());
    byId("key-forget").addEventListener("click", () => this.use("", changed));
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.use(this.input.value.trim(), changed);
    });
  }

  use(text, changed) {
    key.set(text);
    this.input.value = "";
    this.dialog.close();
    changed();
  }

  // The server has refused the request.
  refused() {
    this.open("This server requires an API key.", key.get() ? "The server did not accept this key." : "");
  }

  open(reason, error) {
    setText(byId("key-reason"), reason);
    setText(byId("key-error"), error);
    byId("key-forget").hidden = !key.get();
    if (!this.dialog.open) this.dialog.showModal();
    this.input.focus();
  }
}
