// Turns of the conversation as elements. Text of a model is only ever put in as text.

import { parts, spans } from "./text.js";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key === "onclick") made.addEventListener("click", value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea"); // pages from another machine have no clipboard of their own
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

export function userTurn(text) {
  return element("article", { class: "turn user" }, element("div", { class: "body" }, text));
}

// An answer that grows: thinking, text, figures, buttons.
export class AnswerView {
  constructor({ onRetry }) {
    this.thought = element("div");
    this.summary = element("summary", {}, "Thinking");
    this.think = element("details", { class: "think", hidden: "" }, this.summary, this.thought);
    this.body = element("div", { class: "body" });
    this.block = element("div", { class: "making", hidden: "", "aria-hidden": "true" });
    this.waiting = element("span", { class: "waiting" }, "");
    this.fault = element("p", { class: "fault", role: "alert", hidden: "" });
    this.figures = element("span", { class: "figures" });
    this.rounds = element("span", { class: "rounds", "aria-hidden": "true" });
    this.copyButton = element("button", { type: "button", class: "quiet", onclick: () => copy(this.text, this.copyButton) }, "Copy");
    this.retryButton = element("button", { type: "button", class: "quiet", onclick: onRetry }, "Retry");
    this.foot = element("div", { class: "foot", hidden: "" }, this.figures, this.rounds, this.copyButton, this.retryButton);
    this.root = element("article", { class: "turn answer" }, this.think, this.body, this.block, this.waiting, this.fault, this.foot);
    this.text = "";
    this.shown = []; // keys of the parts that stand in the body
  }

  // Shows what there is so far.
  show(content, reasoning) {
    this.text = content.text;
    this.think.hidden = reasoning.text === "";
    this.thought.replaceChildren(...runs(reasoning, 0, reasoning.text.length));
    const found = parts(content.text);
    for (const [i, part] of found.entries()) {
      const key = JSON.stringify(part);
      if (this.shown[i] === key) continue; // only the last part grows
      const made = part.kind === "code" ? codeBlock(content, part) : paragraph(content, part);
      if (this.body.children[i] === undefined) this.body.append(made);
      else this.body.children[i].replaceWith(made);
      this.shown[i] = key;
    }
    while (this.body.children.length > found.length) this.body.lastChild.remove();
    this.shown.length = found.length;
  }

  // Shows the block in the making: a text for each row that is decided, null for each that is not; [] for none.
  making(rows) {
    this.block.hidden = rows.length === 0;
    this.block.replaceChildren(
      ...rows.map((row) => (row === null ? element("i", {}, "·") : element("span", {}, row.replaceAll("\n", "↵")))),
    );
  }

  wait(text) {
    this.waiting.hidden = false;
    this.waiting.textContent = text;
  }

  end(figures, title, fault, rounds) {
    this.waiting.hidden = true;
    this.figures.textContent = figures;
    this.figures.title = title;
    roundBars(this.rounds, rounds);
    this.foot.hidden = false;
    this.fault.hidden = fault === "";
    this.fault.textContent = fault;
  }
}

function runs(source, start, end) {
  return source.between(start, end).map((run) => (run.mark > 0 ? element("span", { class: "drafted" }, run.text) : run.text));
}

function paragraph(source, part) {
  const made = element("p");
  for (const span of spans(source.text, part.start, part.end)) {
    const inside = runs(source, span.start, span.end);
    made.append(...(span.code ? [element("code", {}, ...inside)] : inside));
  }
  return made;
}

function codeBlock(source, part) {
  const button = element("button", { type: "button", class: "quiet", "aria-label": "Copy code" }, "Copy");
  button.addEventListener("click", () => copy(source.text.slice(part.start, part.end), button));
  const title = element("div", { class: "title" }, element("span", {}, part.language || "text"), button);
  const code = element("code", {}, ...runs(source, part.start, part.end));
  return element("div", { class: "block" }, title, element("pre", { tabindex: "0" }, code));
}

// The last rounds as bars: how much was drafted, and how much of it accepted.
export function roundBars(place, rounds) {
  const most = Math.max(1, ...rounds.map((round) => round.drafted));
  place.replaceChildren(
    ...rounds.map((round) => {
      const inner = element("b");
      const outer = element("i", {}, inner);
      outer.style.height = `${Math.max(12, (100 * round.drafted) / most)}%`;
      inner.style.height = `${round.drafted > 0 ? (100 * round.accepted) / round.drafted : 0}%`;
      return outer;
    }),
  );
}
