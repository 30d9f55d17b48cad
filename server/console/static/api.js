// Calls to the daemon that served the page. The API key is kept for this tab only.

const STORED_KEY = "ebbtide-api-key";

// The page may be below a path prefix: /llm/console/api.js -> /llm/
export const base = new URL("..", import.meta.url);

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(STORED_KEY) || "",
  set: (text) => (text ? sessionStorage.setItem(STORED_KEY, text) : sessionStorage.removeItem(STORED_KEY)),
};

// Returns the response. Throws ApiError with the server's message if the status is an error.
export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(new URL(path, base), {
    method,
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
  });
  if (response.ok) return response;
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error.message || message;
  } catch {
    // The body is not an error object of this server: a proxy may have answered.
  }
  throw new ApiError(response.status, message);
}

// Yields {name, data} for each server-sent event of a response; data is the text.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (pending + value).split("\n\n");
      pending = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event.data !== null) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  const event = { name: "message", data: null };
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event.name = line.slice(7);
    else if (line.startsWith("data: ")) event.data = (event.data === null ? "" : `${event.data}\n`) + line.slice(6);
  }
  return event;
}
