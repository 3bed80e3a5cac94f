"""Short questions to a running server."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

ANSWER_S = 3.0


@dataclass(frozen=True)
class Probe:
    """Asks a server at an address, with a key where one is needed."""

    host: str
    port: int
    api_key: str | None = None
    timeout_s: float = ANSWER_S

    def ready(self) -> bool:
        """Whether the model is loaded and the server takes requests."""
        return self._get("/health")[0] == 200

    def slots(self) -> list[dict[str, Any]] | None:
        """What each slot does, answered between two batches; None when no answer came in time."""
        status, body = self._get("/slots")
        if status != 200:
            return None
        try:
            slots = json.loads(body)
        except ValueError:
            return None
        return slots if isinstance(slots, list) else None

    def _get(self, path: str) -> tuple[int, bytes]:
        """Status and body; status 0 when there was no answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        headers = {"Connection": "close"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()
