// The holders of KV pages, in the order in which bars and charts stack them. The colors are in console.css.

export const HOLDERS = [
  { key: "protected", name: "Protected", help: "Prefix-cache pages that running requests use" },
  { key: "uncached", name: "Uncached", help: "Pages that one request owns" },
  { key: "session_held", name: "Session-held", help: "Pages that sessions keep between their turns" },
  { key: "evictable", name: "Evictable", help: "Unused prefix-cache pages, evicted first" },
  { key: "available", name: "Free", help: "Pages without a holder" },
  { key: "quarantined", name: "Quarantined", help: "Pages that are no longer used, because the accounting did not match" },
];

let known = new Map(); // reading a style is slow, and drawings read many

export function color(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return known.get(name);
}

// Call it when the theme has changed.
export const forgetColors = () => (known = new Map());

export const holderColor = (key) => color(`holder-${key.replace("_", "-")}`);
