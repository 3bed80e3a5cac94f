"""Stands in for llama.cpp's server: `serve_stub.py PORT FOLDER`; what it does, the file FOLDER/behave says.

Each start adds a line to FOLDER/starts. Behaviour, re-read at each look: "good"; "crash"; "exit N words"; "stall": busy
without progress; "mute": takes connections and never answers; "deaf": ignores the request to end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

folder = Path(sys.argv[2])


def behaviour() -> list[str]:
    return (folder / "behave").read_text(encoding="utf-8").split(maxsplit=2)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind = behaviour()[0]
        if kind == "mute":
            time.sleep(1000)
        slots = [{"id": 0, "id_task": 1, "is_processing": kind == "stall", "next_token": [{"n_decoded": 3}]}]
        body = json.dumps(slots if self.path == "/slots" else {"status": "ok"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def obey() -> None:
    """Ends as told, as soon as told."""
    while True:
        kind, *more = behaviour()
        if kind == "crash":
            print("/src/ggml.c:7: GGML_ASSERT(n > 0) failed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL if len(more) else signal.SIGABRT)
        if kind == "exit":
            print("0.00.1.2 I srv    main: all is well", flush=True)
            print(f"0.00.1.3 E srv    load_model: {more[1]}", flush=True)
            os._exit(int(more[0]))
        time.sleep(0.02)


with (folder / "starts").open("a", encoding="utf-8") as out:
    out.write(f"{os.getpid()}\n")
if behaviour()[0] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=obey, daemon=True).start()
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.daemon_threads = True
server.serve_forever()
