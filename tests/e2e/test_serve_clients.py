"""Many clients at once at a server that drafts: none lost, none mixed up, each text that of a single run.

`benchmarks/clients.py` asks the same of 8 clients with 50 requests each.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
from support import ROOT

from pyclover.engine.build_info import programs
from pyclover.engine.speculation import DraftSelf
from pyclover.serve.server import start_server

N_CLIENTS, N_REQUESTS = 8, 4


@pytest.fixture(scope="module")
def clients() -> Any:
    spec = importlib.util.spec_from_file_location("clients", ROOT / "benchmarks" / "clients.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["clients"] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["clients"]


@pytest.mark.timeout(600)
@pytest.mark.skipif("llama" not in programs(), reason="built without llama.cpp's programs")
def test_none_is_lost_and_all_are_those_of_single_runs(clients: Any) -> None:
    # fewer slots than clients: some wait
    with start_server("tiny", port=0, n_slots=4, speculation=DraftSelf(n_max=7, adaptive=False)) as server:
        rounds = clients.measured(server, N_CLIENTS, N_REQUESTS, 2)
        assert server.n_restarts == 0
    for one in rounds:
        assert one.wrong == []
        assert one.n_equal + one.n_ties == N_CLIENTS * N_REQUESTS


def test_what_may_differ_and_what_may_not(clients: Any) -> None:
    def said(content: str, reasoning: str = "So:", end: str = "stop", tokens: Any = ()) -> Any:
        return clients.Said(reasoning, content, end, tokens)

    likely = (
        ("So", {"So": -0.1, "No": -3.0}), (":", {":": -0.1}), ("</think>", {"</think>": -0.01}),
        ("It", {"It": -0.70, "He": -0.72, "She": -0.9}), (" is", {" is": -0.1}), (" 4", {" 4": -0.68, " 5": -0.71}),
    )  # fmt: skip
    single = said("It is 4", tokens=likely)
    assert clients.compared(single, said("It is 4")) == "equal"
    assert clients.compared(single, said("It is 4", reasoning="So: ")) == "equal"  # a stream keeps the blanks
    assert clients.compared(single, said("He was 7")) == pytest.approx(0.02)
    assert clients.compared(single, said("It is 5")) == pytest.approx(0.03)
    for other in (
        said("She is 4"),  # no tie
        said("It was 4"),  # not among the likely ones
        said("It is"), said("It is 44"), said(""),  # cut, longer, lost
        said("It is 4", end="length"), said("It is 4", reasoning="No:"), said("It is 4", reasoning=""),
    ):  # fmt: skip
        assert clients.compared(single, other) == "different", other


def test_a_lost_and_a_mixed_up_answer_are_found(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {clients.question(i, j, 3): f"{i}.{j}" for i in range(2) for j in range(3)}
    assert len(answers) == 6

    class Faulty:
        def __init__(self, port: int) -> None: ...

        def ask(self, text: str, **_: Any) -> Any:
            if answers[text] == "0.1":
                raise ConnectionResetError("gone")
            return clients.Said("", "0.2" if answers[text] == "1.0" else answers[text], "stop")

    monkeypatch.setattr(clients, "Client", Faulty)
    singles = {(i, j): clients.Said("", f"{i}.{j}", "stop") for i in range(2) for j in range(3)}
    found = clients.all_at_once(1, singles, 2, 3)
    assert found.n_equal == 4
    [lost, mixed] = sorted(found.wrong)
    assert lost == "client 0, request 1: ConnectionResetError: gone"
    assert mixed.endswith("the answer to request (0, 2)")
