// What the page remembers, for this tab alone: the conversation and the settings.

const DEFAULTS = { writing: "tokens", thinking: "auto", temperature: "", maxTokens: "", system: "", key: "", drafts: true, theme: "" };

export function load() {
  return { turns: read("turns", []), settings: { ...DEFAULTS, ...read("settings", {}) } };
}

export function keep(name, value) {
  try {
    sessionStorage.setItem(`clover-${name}`, JSON.stringify(value));
  } catch {
    // full or forbidden: the page works without a memory
  }
}

function read(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(`clover-${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}
