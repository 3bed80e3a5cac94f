"""The page as one document: style and modules are put into the HTML, and a policy that lets in nothing else.

One document needs one request, and that is the one path which the server gives out without a key.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("page")
STYLE = '<link rel="stylesheet" href="page.css">'
SCRIPT = '<script type="module" src="page.js"></script>'
POLICY = '<meta http-equiv="Content-Security-Policy" content="">'
FACTS = '<meta name="clover" content="{}">'
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\b)", re.MULTILINE)


def document(facts: Mapping[str, Any] | None = None, folder: Path = FOLDER) -> str:
    """The HTML of the page with everything in it.

    Args:
        facts: what the page shows of its server: model, mode, n_max (0 without drafting), blocks (whether
            it can do block diffusion).

    Raises:
        ValueError: a file of the page is not of the form that is put together here.
    """
    text = _read(folder, "index.html")
    style = "\n" + _read(folder, "page.css")
    script = "\n" + "\n".join(_modules(folder, "page.js", []))
    if "</script" in script.lower() or "</style" in style.lower():
        raise ValueError("a script or style of the page would end its own element")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    for mark, new in (
        (FACTS, FACTS.replace("{}", html.escape(json.dumps(dict(facts or {}))))),
        (POLICY, POLICY.replace('content=""', f'content="{policy}"')),
        (STYLE, f"<style>{style}</style>"),
        (SCRIPT, f'<script type="module">{script}</script>'),
    ):
        if text.count(mark) != 1:
            raise ValueError(f"index.html must have {mark} once")
        text = text.replace(mark, new)
    return text


def write_document(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Writes the page to a folder as a web server wants it; returns its file."""
    path = folder / "index.html"
    path.write_text(document(facts), encoding="utf-8", newline="\n")
    return path


def _modules(folder: Path, name: str, seen: list[str]) -> list[str]:
    """Texts of a module and those that it imports, these first, each once, as parts of one module."""
    if name in seen:
        return []
    seen.append(name)
    text = _read(folder, name)
    parts = [part for other in _IMPORT.findall(text) for part in _modules(folder, other, seen)]
    text = _EXPORT.sub("", _IMPORT.sub("", text))
    if re.search(r"^(?:import|export)\b", text, re.MULTILINE):
        raise ValueError(f'{name}: only `import {{ a }} from "./b.js";` and exported declarations can be joined')
    return [*parts, text]


def _read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _hash(text: str) -> str:
    """Of an element's text, as a content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
