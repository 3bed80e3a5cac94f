// Questions to the server: a streamed answer, and whether it is there.

// What a server said no with. status 0: it does not answer at all.
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Yields the objects of a streamed answer as they come. Throws Refusal; AbortError when stopped.
export async function* stream(body, key, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  let answer;
  try {
    answer = await fetch("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  } catch (error) {
    throw signal.aborted ? error : new Refusal(0, "the server does not answer");
  }
  if (!answer.ok) throw new Refusal(answer.status, await complaint(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let done = false;
  while (!done) {
    let got;
    try {
      got = await reader.read();
    } catch (error) {
      throw signal.aborted ? error : new Refusal(0, "the server went away");
    }
    if (got.done) throw new Refusal(0, "the server went away");
    const lines = (rest + got.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) {
        if (line.startsWith("error:")) throw new Refusal(500, message(line.slice(6)));
        continue;
      }
      const data = line.slice(5).trim();
      if (data === "[DONE]") done = true;
      else yield checked(JSON.parse(data));
    }
  }
}

// Whether it takes requests: "ok", "loading" or "away".
export async function health() {
  try {
    const answer = await fetch("health", { cache: "no-store" });
    return answer.ok ? "ok" : answer.status === 503 ? "loading" : "away";
  } catch {
    return "away";
  }
}

function checked(object) {
  if (object.error) throw new Refusal(object.error.code ?? 500, object.error.message ?? "the server failed");
  return object;
}

async function complaint(answer) {
  return message(await answer.text()) || `the server said ${answer.status}`;
}

function message(text) {
  try {
    return JSON.parse(text).error?.message ?? JSON.parse(text).message ?? "";
  } catch {
    return text.slice(0, 300);
  }
}
