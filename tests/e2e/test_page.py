"""The page that `serve` shows, in a real browser: one asks, stops, retries; the server goes away and comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest

from pyclover.engine.build_info import programs
from pyclover.engine.speculation import DraftSelf
from pyclover.serve.server import Server, start_server

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif("llama" not in programs(), reason="built without llama.cpp's programs"),
]

LONG = "Tell me a story."


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_server(
        "tiny", port=0, speculation=DraftSelf(n_max=7, adaptive=False), defaults={"temperature": 0.0}
    ) as s:
        yield s


@pytest.fixture(scope="module")
def tab(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.page(tmp_path_factory.mktemp("chromium")) as p:
        yield p


@pytest.fixture
def page(server: Server, tab: browser.Page) -> Iterator[browser.Page]:
    """The page with an empty conversation; afterwards nothing was asked of others, and nothing complained of."""
    tab.look(width=1100, height=760)
    tab.open(f"{server.url}/")
    tab.js("sessionStorage.clear()")
    tab.open(f"{server.url}/")
    tab.requests.clear()
    tab.faults.clear()
    yield tab
    tab.js("0")  # takes in what is still to come
    assert [url for url in tab.requests if not url.startswith((f"{server.url}/", "data:"))] == []
    assert tab.faults == []


def test_a_conversation(page: browser.Page, server: Server) -> None:
    assert page.text("#model") == "tiny"
    assert page.text("#mode") == "draft-self (lossless)"
    page.ask("What is 12 + 7?")
    page.answered()
    assert page.text(".answer .body").endswith("19")
    assert page.text(".user .body") == "What is 12 + 7?"
    assert "Thought" in page.text(".think summary")
    assert page.js("document.querySelector('.think').open") is False
    assert page.js("document.querySelectorAll('.answer .body .drafted').length") > 0
    figures = page.text(".answer .figures")
    assert figures.startswith("draft-self (lossless): ")
    assert "tok/s" in figures
    assert "drafted" in figures
    assert page.js("document.querySelectorAll('.answer .rounds i').length") > 0
    assert page.requests == [f"{server.url}/v1/chat/completions"]
    page.open(f"{server.url}/")  # the tab remembers
    assert page.text(".answer .body").endswith("19")
    page.click("#new")
    page.until("document.querySelectorAll('.turn').length === 0")
    assert page.text(".hello")


def test_it_streams_and_stops(page: browser.Page) -> None:
    page.js(
        "window.seen = new Set(); new MutationObserver(() => seen.add(document.querySelector('.answer')?.innerText))"
        ".observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true}); 0"
    )
    page.ask(LONG)
    page.until("document.getElementById('send').innerText === 'Stop'")
    page.until("document.getElementById('live').hidden === false")
    page.answered()
    assert page.js("seen.size") > 3
    page.js("document.getElementById('temperature').value")
    page.ask("Count from 1 to 50.")
    page.until("document.querySelectorAll('.answer').length === 2")
    page.press("Escape")
    page.answered(5)
    assert page.text("#send") == "Send"


def test_enter_and_shift(page: browser.Page) -> None:
    page.js("document.getElementById('prompt').focus()")
    page.type("one")
    page.press("Enter", shift=True)
    page.type("two")
    assert page.js("document.getElementById('prompt').value") == "one\ntwo"
    assert page.js("document.querySelectorAll('.turn').length") == 0
    page.press("Enter")
    page.until("document.querySelectorAll('.user').length === 1")
    assert page.text(".user .body") == "one\ntwo"
    page.answered()


def test_retry_takes_the_place_of_the_answer(page: browser.Page) -> None:
    page.ask("What is 12 + 7?")
    page.answered()
    page.js("[...document.querySelectorAll('.answer .foot button')].at(-1).click()")
    page.until("document.getElementById('log').getAttribute('aria-busy') === 'true'")
    page.answered()
    assert page.js("document.querySelectorAll('.turn').length") == 2
    assert page.text(".answer .body").endswith("19")


def test_settings_are_kept_and_honoured(page: browser.Page, server: Server) -> None:
    page.click("#open-settings")
    assert "7" in page.text("#drafting")
    assert "as blocks (diffusion)" in page.text("#settings")  # which blocks can be seen where
    page.js(
        "for (const [id, value] of [['thinking', 'off'], ['max-tokens', '2']]) {"
        " const e = document.getElementById(id); e.value = value; e.dispatchEvent(new Event('input')); } 0"
    )
    page.click("#close-settings")
    page.ask("What is 12 + 7?")
    page.answered()
    assert page.text(".think") == ""
    assert "2 tokens" in page.text(".answer .figures")
    assert "cut at the longest length" in page.text(".answer .figures")
    page.open(f"{server.url}/")
    assert page.js("document.getElementById('max-tokens').value") == "2"


def test_text_of_a_model_stays_text(page: browser.Page) -> None:
    """What an answer holds is put in as text, whatever it looks like."""
    evil = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\\n\\n```html\\n<b>bold</b>\\n```'
    page.js(
        "sessionStorage.setItem('clover-turns', JSON.stringify([{role: 'user', content: '<i>me</i>'}, "
        f"{{role: 'assistant', content: '{evil}', runs: [{{start: 0, end: 1000, mark: 1}}], reasoning: '<u>x</u>',"
        " thoughtRuns: [{start: 0, end: 8, mark: 0}], figures: '', title: ''}])); 0"
    )
    page.call("Page.reload")
    page.until("document.querySelectorAll('.answer').length === 1")
    assert (
        page.js(
            "document.querySelectorAll('#log img, #log script, #log i:not(.rounds i), #log b:not(.rounds b)').length"
        )
        == 0
    )
    assert page.js("window.hit") is None
    assert page.text(".block pre") == "<b>bold</b>"
    assert page.text(".block .title span") == "html"
    assert page.text(".user .body") == "<i>me</i>"


def test_a_restart_of_the_server_is_survived(page: browser.Page, server: Server) -> None:
    assert server.pid is not None
    n = server.n_restarts
    os.kill(server.pid, signal.SIGKILL)
    page.ask("What is 12 + 7?")
    page.until("!document.getElementById('notice').hidden")
    assert "server" in page.text("#notice")
    page.answered(60)
    assert server.n_restarts == n + 1
    assert page.text(".answer .body").endswith("19")
    assert page.text("#notice") == ""
    # the browser itself tells its console of requests that nobody answered
    page.faults[:] = [fault for fault in page.faults if "ERR_" not in fault and "503" not in fault]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height", "phone"), [(1100, 760, False), (390, 844, True), (320, 640, True)])
def test_every_window_and_theme_has_room_and_contrast(
    page: browser.Page, width: int, height: int, phone: bool, dark: bool, tmp_path: Path
) -> None:
    page.look(width=width, height=height, dark=dark, phone=phone)
    page.ask("Write JSON with name Ada and age 36.")
    page.answered()
    assert page.js("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    bottom = page.js("document.querySelector('.composer').getBoundingClientRect().bottom")
    assert abs(bottom - height) <= 1
    for selector in (".answer .body", ".figures", ".drafted", ".quiet", "#send", "summary"):
        assert page.js(f"({CONTRAST})({selector!r})") >= 4.5, selector
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5000


def test_the_switch_of_colours(page: browser.Page) -> None:
    def ground() -> str:
        return str(page.js("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.click("#theme")
    assert ground() == light
    page.click("#theme")
    dark = ground()
    assert dark != light
    page.click("#theme")
    page.look(width=1100, height=760, dark=True)
    assert ground() == dark


# Contrast of an element's text against the first opaque ground behind it, as WCAG 2 counts it.
CONTRAST = """
(selector) => {
  const paint = (colour) => {
    const c = new OffscreenCanvas(1, 1).getContext("2d");
    c.fillStyle = colour;
    c.fillRect(0, 0, 1, 1);
    return [...c.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const element = [...document.querySelectorAll(selector)].at(-1);
  let behind = element;
  const ground = () => paint(getComputedStyle(behind).backgroundColor);
  while (ground()[3] < 255 && behind.parentElement) behind = behind.parentElement;
  const a = light(paint(getComputedStyle(element).color));
  const b = light(ground());
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
"""


def test_a_server_with_a_key_asks_for_it(tmp_path: Path) -> None:
    with start_server("tiny", port=0, api_key="sesame") as server, browser.page(tmp_path) as page:
        page.open(f"{server.url}/")
        page.ask("What is 12 + 7?")
        page.until("document.getElementById('settings').open")
        assert "asks for a key" in str(page.js("document.querySelector('.fault').textContent"))
        page.type("sesame")
        page.press("Escape")
        page.until("!document.getElementById('settings').open")
        page.js("[...document.querySelectorAll('.answer .foot button')].at(-1).click()")
        page.until("document.getElementById('log').getAttribute('aria-busy') === 'true'")
        page.answered()
        assert page.text(".answer .body")


def test_block_diffusion_is_shown_as_it_is_resolved(page: browser.Page) -> None:
    page.js(
        "window.blocks = []; new MutationObserver(() => { const rows = document.querySelectorAll('.making > *');"
        " if (rows.length > 0) blocks.push([rows.length, document.querySelectorAll('.making > i').length]); })"
        ".observe(document.getElementById('log'), {childList: true, subtree: true}); 0"
    )
    page.click("#open-settings")
    page.js(
        "const s = document.getElementById('writing'); s.value = 'diffusion'; s.dispatchEvent(new Event('input')); 0"
    )
    page.click("#close-settings")
    page.ask("Tell me a story about a cat.")  # takes several passes a block
    page.answered()
    assert page.text(".answer .figures").startswith("block diffusion: ")
    assert "passes" in page.text(".answer .figures")
    assert page.text(".answer .body") != ""
    found = page.js("blocks")
    assert max(n for n, _ in found) > 1
    assert any(0 < undecided < n for n, undecided in found)
    assert any(undecided == 0 for _, undecided in found)
    assert page.js("document.querySelector('.making').hidden") is True
