// Text of a model: which parts are code, and which tokens a draft gave. Nothing here touches the page.

// Parts of a text, in order: {kind: "code", language, start, end, closed} or {kind: "text", start, end}; start and end
// are places in the text, fences and the blank lines between parts left out.
export function parts(text) {
  const found = [];
  let open = null;
  let begin = 0;
  const close = (end) => {
    if (text.slice(begin, end).trim() !== "") found.push({ kind: "text", ...trimmed(text, begin, end) });
  };
  for (let at = 0; at < text.length; ) {
    const newline = text.indexOf("\n", at);
    const next = newline < 0 ? text.length : newline + 1;
    const line = text.slice(at, newline < 0 ? text.length : newline);
    const fence = /^ {0,3}(`{3,}|~{3,}) *([^`]*)$/.exec(line);
    if (open === null && fence !== null) {
      close(at);
      open = { kind: "code", language: fence[2].trim().split(/\s+/)[0], start: next, end: next, closed: false, fence: fence[1] };
    } else if (open !== null && fence !== null && fence[2] === "" && fence[1].startsWith(open.fence)) {
      found.push(finished(open, Math.max(open.start, at - 1), true));
      open = null;
      begin = next;
    } else if (open === null && line.trim() === "") {
      close(at);
      begin = next;
    }
    at = next;
  }
  if (open !== null) found.push(finished(open, text.length, false));
  else close(text.length);
  return found;
}

function finished(open, end, closed) {
  return { kind: "code", language: open.language, start: open.start, end, closed };
}

function trimmed(text, start, end) {
  while (end > start && /\s/.test(text[end - 1])) end--;
  return { start, end };
}

// Places of `code` inside a paragraph: [{start, end, code}], fences of the span left out.
export function spans(text, start, end) {
  const found = [];
  const pattern = /(`+)([^`\n](?:[^\n]*?[^`\n])?)\1(?!`)/g;
  const inside = text.slice(start, end);
  let last = 0;
  for (let hit = pattern.exec(inside); hit !== null; hit = pattern.exec(inside)) {
    if (hit.index > last) found.push({ start: start + last, end: start + hit.index, code: false });
    const from = start + hit.index + hit[1].length;
    found.push({ start: from, end: from + hit[2].length, code: true });
    last = hit.index + hit[0].length;
  }
  if (last < inside.length) found.push({ start: start + last, end, code: false });
  return found;
}

// Text that grows by pieces, each with or without the mark of a draft. Neighbours with the same mark become one run.
export class Runs {
  constructor() {
    this.text = "";
    this.list = []; // {start, end, mark}; mark: 0, or the number of the round whose draft it was
  }

  add(piece, mark) {
    if (piece === "") return;
    const start = this.text.length;
    this.text += piece;
    const last = this.list.at(-1);
    if (last !== undefined && last.mark === mark) last.end = this.text.length;
    else this.list.push({ start, end: this.text.length, mark });
  }

  // The runs between two places: [{text, mark}].
  between(start, end) {
    const found = [];
    for (const run of this.list) {
      const from = Math.max(start, run.start);
      const to = Math.min(end, run.end);
      if (from < to) found.push({ text: this.text.slice(from, to), mark: run.mark });
    }
    return found;
  }
}
