// The page: settings, sending, stopping, and what to do when the server goes away.

import { Meter } from "./meter.js";
import { Refusal, health, stream } from "./server.js";
import { keep, load } from "./store.js";
import { Runs } from "./text.js";
import { AnswerView, roundBars, userTurn } from "./view.js";

const MAX_RETRIES = 3;
const $ = (id) => document.getElementById(id);
const facts = JSON.parse(document.querySelector("meta[name=clover]").content);
const { turns, settings } = load(); // turns: {role, content}, answers also {runs, reasoning, figures, title}
let running = null; // AbortController of the answer in the making
let ended = Promise.resolve(); // when that is over

// ---- settings -------------------------------------------------------------------------------------------------------

const FIELDS = { writing: "writing", thinking: "thinking", temperature: "temperature", "max-tokens": "maxTokens", system: "system", key: "key" };

function setUp() {
  for (const [id, name] of Object.entries(FIELDS)) {
    $(id).value = settings[name];
    $(id).addEventListener("input", () => {
      settings[name] = $(id).value;
      keep("settings", settings);
      markWriting();
    });
  }
  $("drafts").checked = settings.drafts;
  $("drafts").addEventListener("input", () => {
    settings.drafts = $("drafts").checked;
    keep("settings", settings);
    markDrafts();
  });
  $("model").textContent = facts.model ?? "Clover";
  $("mode").textContent = facts.mode ?? "";
  $("mode").hidden = !facts.mode;
  $("drafting").textContent = facts.n_max ? `up to ${facts.n_max} tokens, the server's` : "off";
  $("drafts-row").hidden = !facts.n_max;
  $("writing-row").hidden = !facts.blocks;
  markDrafts();
  markWriting();
  paintTheme();
}

// Blocks are greedy: a temperature would have no effect.
function markWriting() {
  $("temperature").disabled = Boolean(facts.blocks) && settings.writing === "diffusion";
}

function markDrafts() {
  document.body.classList.toggle("plain-drafts", !settings.drafts);
}

const THEMES = { "": ["◐", "as the system has them", "light"], light: ["☀", "light", "dark"], dark: ["☾", "dark", ""] };

function paintTheme() {
  const [sign, name] = THEMES[settings.theme];
  document.documentElement.dataset.theme = settings.theme;
  $("theme").textContent = sign;
  $("theme").setAttribute("aria-label", `Colours: ${name}`);
  $("theme").title = `Colours: ${name}`;
}

// ---- the conversation -----------------------------------------------------------------------------------------------

function request() {
  const system = settings.system.trim() === "" ? [] : [{ role: "system", content: settings.system }];
  const body = {
    messages: [...system, ...turns.map(({ role, content }) => ({ role, content }))],
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    return_progress: true,
  };
  if (facts.blocks && settings.writing === "diffusion") body.diffusion = { stream_blocks: true }; // it has no temperature
  else if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  if (settings.maxTokens !== "") body.max_tokens = Number(settings.maxTokens);
  if (settings.thinking !== "auto") body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}

// Shows all turns that are remembered.
function restore() {
  for (const turn of turns) {
    if (turn.role === "user") $("log").append(userTurn(turn.content));
    else {
      const view = new AnswerView({ onRetry: retry });
      view.show(revived(turn.content, turn.runs), revived(turn.reasoning, turn.thoughtRuns));
      view.end(turn.figures, turn.title, turn.fault ?? "", turn.rounds ?? []);
      nameThought(view, turn.reasoning, false);
      $("log").append(view.root);
    }
  }
  $("empty").hidden = turns.length > 0;
  window.scrollTo(0, document.body.scrollHeight);
}

function revived(text, list) {
  return Object.assign(new Runs(), { text, list });
}

function nameThought(view, reasoning, thinking) {
  view.summary.textContent = thinking ? "Thinking …" : `Thought (${reasoning.trim().split(/\s+/).length} words)`;
}

function atBottom() {
  return window.innerHeight + window.scrollY >= document.body.scrollHeight - 80;
}

function send() {
  const text = $("prompt").value.trim();
  if (text === "" || running !== null) return;
  $("prompt").value = "";
  grow();
  turns.push({ role: "user", content: text });
  keep("turns", turns);
  $("empty").hidden = true;
  $("log").append(userTurn(text));
  ended = answer();
}

function retry() {
  if (running !== null) return;
  while (turns.at(-1)?.role === "assistant") {
    turns.pop();
    $("log").lastChild.remove();
  }
  if ($("log").lastChild?.classList?.contains("answer")) $("log").lastChild.remove(); // one that failed at once
  if (turns.at(-1)?.role === "user") ended = answer();
}

async function answer() {
  running = new AbortController();
  $("send").textContent = "Stop";
  $("send").classList.add("stop");
  $("log").setAttribute("aria-busy", "true");
  // a retry belongs to the last answer alone
  document.querySelectorAll(".answer .foot button:last-child").forEach((button) => (button.hidden = true));
  const view = new AnswerView({ onRetry: retry });
  $("log").append(view.root);
  window.scrollTo(0, document.body.scrollHeight);
  const signal = running.signal;
  let got = null;
  let fault = "";
  for (let tries = 0; ; tries++) {
    got = { content: new Runs(), reasoning: new Runs(), meter: new Meter(), reason: "" };
    try {
      await receive(got, view, signal);
      notice("");
    } catch (error) {
      if (signal.aborted) got.reason = "stopped";
      else if (error instanceof Refusal && (error.status === 0 || error.status === 503) && tries < MAX_RETRIES) {
        if (await comesBack(view, signal)) continue;
        got.reason = "stopped";
      } else fault = explain(error);
    }
    break;
  }
  notice("");
  finish(got, view, fault);
}

// Takes an answer in; what there is is shown once a frame.
async function receive(got, view, signal) {
  let due = false;
  const paint = () => {
    due = false;
    const follow = atBottom();
    view.show(got.content, got.reasoning);
    if (got.reasoning.text !== "") nameThought(view, got.reasoning.text, got.content.text === "");
    showLive(got.meter);
    if (follow) window.scrollTo(0, document.body.scrollHeight);
  };
  view.show(got.content, got.reasoning);
  view.wait("");
  for await (const chunk of stream(request(), settings.key, signal)) {
    const progress = chunk.prompt_progress;
    if (progress && progress.total > 0) view.wait(`reading the prompt, ${Math.floor((100 * progress.processed) / progress.total)} %`);
    const choice = chunk.choices?.[0];
    const mark = got.meter.take(chunk.timings);
    if (choice === undefined) continue;
    const { content, reasoning_content: reasoning } = choice.delta ?? {};
    if (content || reasoning || chunk.diffusion_block) view.wait("");
    const follow = atBottom();
    view.making(chunk.diffusion_block ?? []);
    if (follow && chunk.diffusion_block) window.scrollTo(0, document.body.scrollHeight);
    got.content.add(content ?? "", mark);
    got.reasoning.add(reasoning ?? "", mark);
    got.reason = choice.finish_reason ?? got.reason;
    if (!due) {
      due = true;
      requestAnimationFrame(paint);
    }
  }
}

function finish(got, view, fault) {
  running = null;
  $("send").textContent = "Send";
  $("send").classList.remove("stop");
  $("log").setAttribute("aria-busy", "false");
  const end = { length: "cut at the longest length", stopped: "stopped" }[got.reason];
  const figures = [got.meter.line(), end].filter(Boolean).join(" · ");
  const positions = got.meter.byPosition();
  const title = positions.length > 0 ? `accepted by place in the draft: ${positions.join(", ")}` : "";
  const follow = atBottom();
  view.show(got.content, got.reasoning);
  if (got.reasoning.text !== "") nameThought(view, got.reasoning.text, false);
  view.making([]);
  view.end(figures, title, fault, got.meter.rounds);
  $("live").hidden = true;
  if (got.content.text !== "" || got.reasoning.text !== "") {
    turns.push({
      role: "assistant", content: got.content.text, runs: got.content.list, reasoning: got.reasoning.text,
      thoughtRuns: got.reasoning.list, figures, title, fault, rounds: got.meter.rounds,
    });
    keep("turns", turns);
  }
  if (follow) window.scrollTo(0, document.body.scrollHeight);
  if (!$("settings").open) $("prompt").focus();
}

// Speed and acceptance of the answer in the making.
function showLive(meter) {
  if (running === null) return;
  const line = meter.line();
  $("live").hidden = line === "";
  $("live-text").textContent = line;
  roundBars($("rounds"), meter.rounds);
}

// ---- the server is away ---------------------------------------------------------------------------------------------

// Waits until the server is there again; false when the user stops it.
async function comesBack(view, signal) {
  for (let pause = 500; !signal.aborted; pause = Math.min(5000, pause * 1.5)) {
    const state = await health();
    if (state === "ok") {
      notice("The server is back; asking again.");
      return true;
    }
    notice(state === "loading" ? "The server is loading the model …" : "The server does not answer. Trying again …");
    view.wait("");
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  return false;
}

function explain(error) {
  if (!(error instanceof Refusal)) return `The page failed: ${error.message}`;
  if (error.status === 401) {
    $("settings").showModal();
    $("key").focus();
    return "This server asks for a key: give it in the settings, then retry.";
  }
  if (error.status === 0) return `${error.message[0].toUpperCase()}${error.message.slice(1)} each time it was asked.`;
  return `The server refused: ${error.message}`;
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = text === "";
}

// ---- keys and buttons -----------------------------------------------------------------------------------------------

function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
}

$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("settings").open) running?.abort();
});
$("send").addEventListener("click", () => (running === null ? send() : running.abort()));
$("new").addEventListener("click", async () => {
  running?.abort();
  await ended;
  turns.length = 0;
  keep("turns", turns);
  document.querySelectorAll(".turn").forEach((turn) => turn.remove());
  $("empty").hidden = false;
  $("prompt").focus();
});
$("theme").addEventListener("click", () => {
  settings.theme = THEMES[settings.theme][2];
  keep("settings", settings);
  paintTheme();
});
$("open-settings").addEventListener("click", () => $("settings").showModal());
$("close-settings").addEventListener("click", () => $("settings").close());
$("settings").addEventListener("click", (event) => event.target === $("settings") && $("settings").close());

setUp();
restore();
$("prompt").focus();
