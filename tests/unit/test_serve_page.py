"""The page of `serve` without a browser: one document, a policy that fits it, and its modules that only compute."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pyclover.serve.document import FOLDER, document

FILES = sorted(FOLDER.iterdir())


def test_the_policy_names_what_is_there_and_nothing_else() -> None:
    html = document({"model": 'a"><script>alert(1)</script>', "mode": "plain", "n_max": 0})
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert (len(scripts), len(styles)) == (1, 1)
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[0]
    for text in (*scripts, *styles):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy


def test_the_page_names_no_other_place() -> None:
    for file in FILES:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.|\bwss?:|url\(|@import", text), file.name
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"):
            assert forbidden not in text, file.name


def test_a_form_that_cannot_be_joined(tmp_path: Path) -> None:
    for file in FILES:
        shutil.copy(file, tmp_path)
    (tmp_path / "meter.js").write_text("export default 3;\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"meter\.js"):
        document(folder=tmp_path)


@pytest.fixture
def node() -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("no node on this machine")
    return program


def run(node: str, module: str, expression: str) -> Any:
    """Value of an expression that uses a module of the page as `m`."""
    code = f"import * as m from {json.dumps((FOLDER / module).as_uri())};\nconsole.log(JSON.stringify({expression}));"
    command = [node, "--input-type=module", "--experimental-default-type=module", "--no-warnings", "-e", code]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shown(node: str, text: str) -> list[list[str]]:
    """Parts of a text: kind and what is shown of it."""
    parts = run(node, "text.js", f"m.parts({json.dumps(text)})")
    return [[part["kind"], text[part["start"] : part["end"]]] for part in parts]


def test_parts_of_a_text(node: str) -> None:
    assert shown(node, "One\ntwo\n\n\nthree\n") == [["text", "One\ntwo"], ["text", "three"]]
    assert shown(node, "Look:\n```python\nprint(1)\n\nx\n```\nDone") == [
        ["text", "Look:"],
        ["code", "print(1)\n\nx"],
        ["text", "Done"],
    ]
    assert shown(node, "```\nunfinished\n") == [["code", "unfinished\n"]]
    assert shown(node, "````\n```\nin it\n```\n````") == [["code", "```\nin it\n```"]]
    assert shown(node, "```js\n```") == [["code", ""]]
    assert shown(node, "a ``` b") == [["text", "a ``` b"]]
    assert shown(node, "") == []


def test_code_in_a_line(node: str) -> None:
    text = "use `x < 1` or ``a`b`` and 5` high"
    spans = run(node, "text.js", f"m.spans({json.dumps(text)}, 0, {len(text)})")
    assert [(text[s["start"] : s["end"]], s["code"]) for s in spans] == [
        ("use ", False),
        ("x < 1", True),
        (" or ", False),
        ("a`b", True),
        (" and 5` high", False),
    ]


def timings(token: int, rounds: int, drafted: int, accepted: int) -> dict[str, Any]:
    """As a chunk of the patched server carries them."""
    return {
        "predicted_n": token, "predicted_per_second": 50.0, "draft_rounds": rounds, "draft_n": drafted,
        "draft_n_accepted": accepted, "draft_relaxed": False, "draft_n_by_position": [rounds] * 3,
        "draft_n_accepted_by_position": [1, 1, 0],
    }  # fmt: skip


def test_which_tokens_a_draft_gave(node: str) -> None:
    """Token 1 comes from the prompt; round 1 accepts 2 of 3: tokens 2 and 3 and its own 4; round 2 none: 5 alone."""
    seen: list[Any] = [{"predicted_n": 1}, *(timings(n, 1, 3, 2) for n in (2, 3, 4)), timings(5, 2, 6, 2), None]
    found = run(
        node,
        "meter.js",
        f"(() => {{ const meter = new m.Meter(); const marks = {json.dumps(seen)}.map((t) => meter.take(t));"
        " return [marks, meter.line(), meter.byPosition(), meter.rounds]; })()",
    )
    marks, line, positions, rounds = found
    assert marks == [0, 1, 1, 0, 0, 0]
    assert line == "draft-self (lossless): 5 tokens · 50.0 tok/s · accepted 2 of 6 drafted (33 %) in 2 rounds"
    assert positions == ["1: 50 %", "2: 50 %", "3: 0 %"]
    assert rounds == [{"drafted": 3, "accepted": 2}, {"drafted": 3, "accepted": 0}]


def test_runs_keep_text_and_marks_together(node: str) -> None:
    found = run(
        node,
        "text.js",
        "(() => { const r = new m.Runs(); r.add('ab', 0); r.add('', 1); r.add('cd', 1); r.add('ef', 1); r.add('g', 2);"
        " return [r.text, r.between(1, 7), r.between(2, 2)]; })()",
    )
    assert found == [
        "abcdefg",
        [{"text": "b", "mark": 0}, {"text": "cdef", "mark": 1}, {"text": "g", "mark": 2}],
        [],
    ]
