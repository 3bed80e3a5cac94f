"""API keys: given as text or in a file, and asked for where others can reach the server."""

from __future__ import annotations

from collections.abc import Sequence

from pyclover import arguments
from pyclover.errors import PathLike, UsageError, shortened
from pyclover.serve.address import is_loopback


def collect(api_key: str | Sequence[str] | None, api_key_file: PathLike | None) -> tuple[str, ...]:
    """All keys; a text may hold several with commas, a file one a line (# begins a comment).

    Raises:
        UsageError: no text, an empty key, one that no HTTP header can carry, or a file without keys.
    """
    if api_key is not None and not isinstance(api_key, (str, Sequence)):
        raise UsageError(f"api_key is {shortened(api_key)}: it must be a str or a list of them", option="api_key")
    given = [] if api_key is None else [api_key] if isinstance(api_key, str) else list(api_key)
    keys = [_checked(key.strip(), "api_key") for text in given for key in arguments.text("api_key", text).split(",")]
    if api_key_file is not None:
        path = arguments.path("api_key_file", api_key_file)
        try:
            lines = path.expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise UsageError(f"the key file {path} cannot be read: {why}", option="api_key_file") from None
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise UsageError(f"the key file {path} has no key: write one a line", option="api_key_file")
        keys += [_checked(key, "api_key_file") for key in found]
    return tuple(dict.fromkeys(keys))


def _checked(key: str, option: str) -> str:
    if not key:
        raise UsageError(f"{option}: an empty key would keep nobody out: give some characters", option=option)
    if not key.isascii() or not key.isprintable() or any(c in key for c in ", "):
        raise UsageError(
            f"{option}: a key is made of printable ASCII characters without blanks and commas", option=option
        )
    return key


def require(host: str, keys: Sequence[str]) -> None:
    """Raises UsageError when others can reach the address and no key is asked of them."""
    if not keys and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines: add --api-key KEY (or --api-key-file FILE), or listen on "
            "127.0.0.1",
            option="host",
        )
