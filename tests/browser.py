"""A headless Chromium driven through its DevTools protocol: just enough to use a page as a person does."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell")
KEYS = {"Enter": ("\r", 13), "Escape": ("", 27), "Tab": ("\t", 9)}


class Page:
    """One tab. `requests` are the addresses that it asked for; `faults` what its console and its policy complain of."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._n = socket, 0
        self.requests: list[str] = []
        self.faults: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Result of a command; events that come before it are taken in."""
        self._n += 1
        self._socket.send(json.dumps({"id": self._n, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == self._n:
                assert "error" not in message, message
                return message["result"]
            self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(params["exceptionDetails"])[:500])
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.faults.append(json.dumps(params["args"])[:500])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.faults.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && document.activeElement.id === 'prompt'")

    def js(self, expression: str) -> Any:
        """Value of an expression in the page; promises are waited for."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def text(self, selector: str) -> str:
        """Text of the last element that fits, "" when there is none or it is hidden."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)"
        return str(self.js(f"{found}?.checkVisibility() ? {found}.innerText : ''"))

    def until(self, expression: str, seconds: float = 30) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.js(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never: {expression}; {self.text('main')!r}; {self.faults}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of an element."""
        middle = (
            "(selector) => { const e = document.querySelector(selector); e.scrollIntoView({block: 'center'});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }"
        )
        x, y = self.js(f"({middle})({json.dumps(selector)})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        char, code = KEYS[key]
        at = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=char, **at)
        self.call("Input.dispatchKeyEvent", type="keyUp", **at)

    def ask(self, text: str) -> None:
        """Types a message and sends it."""
        self.js("document.getElementById('prompt').focus()")
        self.type(text)
        self.press("Enter")

    def answered(self, seconds: float = 60) -> None:
        """Waits until the answer in the making is complete."""
        self.until("document.getElementById('log').getAttribute('aria-busy') === 'false'", seconds)

    def look(self, *, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        """Size of the window, and the colours that the system wants."""
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def page(folder: Path) -> Iterator[Page]:
    """A new tab of a new browser; the test is skipped where there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    client = pytest.importorskip("websockets.sync.client", reason="needs websockets, to talk to the browser")
    home = folder / "browser"
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    command = [
        program, "--headless=new", *root, f"--user-data-dir={home}", "--remote-debugging-port=0", "--no-first-run",
        "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "about:blank",
    ]  # fmt: skip
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        ports = home / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not ports.exists() or not ports.read_text(encoding="ascii").strip():
            assert browser.poll() is None, "the browser did not start"
            assert time.monotonic() < end, "the browser does not come up"
            time.sleep(0.1)
        connection = http.client.HTTPConnection(
            "127.0.0.1", int(ports.read_text(encoding="ascii").split()[0]), timeout=30
        )
        connection.request("PUT", "/json/new?about:blank")
        address = json.loads(connection.getresponse().read())["webSocketDebuggerUrl"]
        connection.close()
        with client.connect(address, max_size=None, open_timeout=30) as socket:
            yield Page(socket)
    finally:
        browser.terminate()
        try:
            browser.wait(10)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()
