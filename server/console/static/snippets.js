// A chat request as a curl command and as a Python program. Both read the API key from an environment variable.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const python = (value, indent = "") => {
  const inner = `${indent}    `;
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[\n${value.map((entry) => `${inner}${python(entry, inner)},\n`).join("")}${indent}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, entry]) => `${JSON.stringify(name)}: ${python(entry, inner)}`).join(", ")}}`;
  return JSON.stringify(value);
};

export function asCurl(url, body, hasKey) {
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $EBBTIDE_API_KEY"` : "";
  return `curl -N ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(body))}`;
}

export function asPython(base, body, hasKey) {
  const { stream_options: _, ...fields } = body;
  const key = hasKey ? 'os.environ["EBBTIDE_API_KEY"]' : '"none"';
  const lines = Object.entries(fields).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("");
  return `${hasKey ? "import os\n\n" : ""}from openai import OpenAI  # pip install openai

client = OpenAI(base_url=${JSON.stringify(base)}, api_key=${key})
stream = client.chat.completions.create(
${lines})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}
