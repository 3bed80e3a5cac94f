"""Which failures of a hub may pass, and how long to wait for that."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from huggingface_hub.errors import HfHubHTTPError

from pyclover import arguments
from pyclover.errors import UsageError, shortened

# Transport and status errors of the HTTP library that this huggingface_hub stands on: httpx or httpx2.
HTTP_ERROR: type[Exception] = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")

MAX_S = 86_400
_TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Retry:
    """How patient to be with a hub.

    Attributes:
        n_retries: how often to try again without a single new byte in between.
        wait_s: the wait before the first retry; it doubles from one to the next.
        max_wait_s: the longest wait; also when the server asks for a longer one.
        timeout_s: how long the line may be silent; HF_HUB_DOWNLOAD_TIMEOUT, else 20.
    """

    n_retries: int = 5
    wait_s: float = 1.0
    max_wait_s: float = 30.0
    timeout_s: float = field(default_factory=lambda: _timeout_s())

    def __post_init__(self) -> None:
        """Raises UsageError for what no wait can be."""
        arguments.integer("n_retries", self.n_retries, 0)
        for option in ("wait_s", "max_wait_s", "timeout_s"):
            value = getattr(self, option)
            wrong = isinstance(value, bool) or not isinstance(value, (int, float))
            if wrong or not (0 <= value <= MAX_S) or (option == "timeout_s" and not value):
                above = "more than 0" if option == "timeout_s" else "at least 0"
                raise UsageError(
                    f"{option} is {shortened(value)}: it must be a number of seconds, {above}, at most {MAX_S}",
                    option=option,
                )


def _timeout_s() -> float:
    given = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    return min(float(given), MAX_S) if given.isdecimal() and int(given) > 0 else 20.0


class Patience:
    """Counts failures in a row and waits between them."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._n_failed = 0

    def progress(self) -> None:
        """Something has come: the count begins anew."""
        self._n_failed = 0

    def wait(self, error: Exception) -> bool:
        """Waits before the next try; False, at once, when it is of no use to try again."""
        if not is_transient(error) or self._n_failed >= self._retry.n_retries:
            return False
        wait_s = self._retry.wait_s * 2**self._n_failed
        response = getattr(error, "response", None)
        asked = "" if response is None else response.headers.get("Retry-After", "")
        if asked.isdecimal():
            wait_s = max(wait_s, float(asked))
        self._n_failed += 1
        time.sleep(min(wait_s, self._retry.max_wait_s))
        return True


class BrokenAnswerError(Exception):
    """The server's answer breaks off or is about other bytes than were asked for; trying again may help."""


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, HfHubHTTPError):
        return status_of(error) in _TRANSIENT_STATUS
    return isinstance(error, (HTTP_ERROR, BrokenAnswerError))


def status_of(error: Exception) -> int:
    """The HTTP status of an error, 0 when there was no answer."""
    return int(getattr(getattr(error, "response", None), "status_code", 0))
