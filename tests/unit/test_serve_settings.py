"""`serve`: what is checked before anything starts, and the command line of llama.cpp's server that comes of it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from pyclover.engine.speculation import BlockDiffusion, DraftSelf
from pyclover.errors import DoesNotFitError, ServerError, UsageError
from pyclover.plan.estimate import Estimate, Row
from pyclover.plan.machine import GIB, MIB, Machine
from pyclover.plan.result import Plan
from pyclover.plan.room import Pool
from pyclover.plan.settings import Settings
from pyclover.serve import address, keys, memory
from pyclover.serve.settings import ServerSettings
from pyclover.serve.workers import check_workers, parse_workers


def test_the_command_line_of_drafting() -> None:
    draft = DraftSelf(n_max=7, accept_ratio=0.9, block=16, steps=2, p_min=0.5)
    words = ServerSettings(speculation=draft, defaults={"temperature": 0.0}).arguments()
    line = " ".join(words)
    assert "--spec-type draft-self --spec-draft-n-max 7" in line
    assert "--spec-draft-steps 2 --spec-draft-rows 16 --spec-draft-p-min 0.5" in line
    assert "--spec-accept-ratio 0.9 --spec-accept-delta 0.0" in line
    assert "--temp 0" in line


def test_plain_is_the_default_and_only_this_machine_may_ask() -> None:
    words = ServerSettings().arguments()
    assert "--spec-type" not in words
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--cors-origins") + 1] == "localhost"
    assert not {"--embeddings", "--metrics", "--props", "--tools", "--rpc"} & set(words)


def test_keys_are_in_the_environment_and_not_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_TOOLS", "all")
    monkeypatch.setenv("LLAMA_API_KEY", "foreign")
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    settings = ServerSettings(api_keys=("secret-1", "secret-2"))
    assert "secret" not in " ".join(settings.arguments())
    assert "secret" not in repr(settings)
    environment = settings.environment()
    assert environment["LLAMA_API_KEY"] == "secret-1,secret-2"
    assert not {"LLAMA_ARG_TOOLS", "AIP_MODE"} & set(environment)
    assert "LLAMA_API_KEY" not in ServerSettings().environment()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"host": "0.0.0.0"}, "add --api-key KEY (or --api-key-file FILE)"),
        ({"host": "192.168.1.4"}, "can be reached from other machines"),
        ({"host": "example.org"}, "can be reached from other machines"),
        ({"host": "a,b"}, "host"),
        ({"host": "x.sock"}, "host"),
        ({"port": 65536}, "port"),
        ({"n_slots": 0}, "n_slots"),
        ({"speculation": BlockDiffusion()}, "asked for in each request"),
        ({"speculation": DraftSelf(accept_ratio=0.5)}, "temperature=0"),
        ({"defaults": {"grammar": "root ::= x"}}, "belongs to each request"),
        ({"defaults": {"top_p": 2.0}}, "top_p"),
        ({"defaults": 5}, "defaults is 5: it must be a mapping"),
        ({"thinking": 3}, "thinking"),
        ({"stall_s": float("nan")}, "stall_s"),
        ({"cors_origins": ""}, "cors_origins"),
        ({"cors_origins": "example.org"}, "one origin without a path, such as https://example.org"),
        ({"cors_origins": "https://example.org/"}, "without a path"),
        ({"cors_origins": "https://a.example,https://b.example"}, "browsers take no list"),
        ({"cors_origins": "https://a.example\r\nX: y"}, "cors_origins"),
    ],
)
def test_what_cannot_be_honoured(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerSettings(**values)
    assert said in str(caught.value)


# "localhost" and "*" have a meaning for llama.cpp's server; others it sends as they are, and a browser compares them
# with its page's origin, of which the Fetch standard has the form
@pytest.mark.parametrize("origin", ["localhost", "*", "https://example.org", "http://[::1]:5173", "app-x://localhost"])
def test_origins(origin: str) -> None:
    words = ServerSettings(cors_origins=origin).arguments()
    assert words[words.index("--cors-origins") + 1] == origin


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert address.is_loopback(host)
    ServerSettings(host=host)


def test_what_is_neither_text_nor_list() -> None:
    with pytest.raises(UsageError, match="api_key is 5: it must be a str or a list"):
        keys.collect(5, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="rpc is 5: it must be a str or a list"):
        parse_workers(5)  # type: ignore[arg-type]


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of my laptop\nabc\n\n  def  \nabc\n", encoding="utf-8")
    assert keys.collect("first", file) == ("first", "abc", "def")
    assert keys.collect("a,b", None) == ("a", "b")
    assert ServerSettings(host="0.0.0.0", api_keys=keys.collect(None, file)).api_keys == ("abc", "def")
    file.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has no key"):
        keys.collect(None, file)
    with pytest.raises(UsageError, match="cannot be read"):
        keys.collect(None, tmp_path / "missing")
    for bad in ("", "a,,b", "schlüssel", "two words"):
        with pytest.raises(UsageError, match="api_key"):
            keys.collect(bad, None)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(ServerError, match=rf"127\.0\.0\.1:{port} is taken"):
            address.bindable("127.0.0.1", port)
    assert address.bindable("127.0.0.1", port) == port
    assert address.bindable("127.0.0.1", 0) > 0
    with pytest.raises(ServerError, match="no address of this machine"):
        address.bindable("203.0.113.7", 0)  # of the range for documentation


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "h:1,", "h:1,h:1", "[::1]:5", "h:1 2"]
)
def test_what_is_no_list_of_workers(text: str) -> None:
    with pytest.raises(UsageError, match="rpc: "):
        parse_workers(text)


def test_lists_of_workers() -> None:
    assert [str(w) for w in parse_workers("a.local:50052, 10.0.0.2:7")] == ["a.local:50052", "10.0.0.2:7"]
    assert parse_workers(["a:1", "b:2"]) == parse_workers("a:1,b:2")
    parse_workers(",".join(f"h:{i}" for i in range(1, 17)))
    with pytest.raises(UsageError, match="at most 16"):
        parse_workers(",".join(f"h:{i}" for i in range(1, 18)))


def test_workers_that_are_none() -> None:
    port = address.bindable("127.0.0.1", 0)
    with pytest.raises(ServerError, match=rf"127\.0\.0\.1:{port} cannot be reached") as caught:
        check_workers(parse_workers(f"127.0.0.1:{port}"))
    assert caught.value.worker == f"127.0.0.1:{port}"
    with socket.socket() as s:  # takes connections and says nothing, as a worker that is busy with another server
        s.bind(("127.0.0.1", 0))
        s.listen()
        with pytest.raises(ServerError, match="one server at a time"):
            check_workers(parse_workers(f"127.0.0.1:{s.getsockname()[1]}"))


def plan(state_bytes: int, free_bytes: int | None, needed_bytes: int) -> Plan:
    rows = (Row("recurrent state", "CPU", state_bytes // 2), Row("rollback", "CPU", state_bytes // 2))
    return Plan(
        model="m", settings=Settings(n_ctx=4096), choices=(), estimate=Estimate(rows), n_layer=4, machine=Machine(),
        pools=(Pool("memory", needed_bytes, free_bytes, GIB),),
    )  # fmt: skip


def test_states_of_further_slots_have_to_fit() -> None:
    # 8 GiB free, 1 in reserve, 4 needed: 3 left, so 3 more slots of 1 GiB each
    memory.caches(plan(GIB, 8 * GIB, 4 * GIB), 4)
    with pytest.raises(DoesNotFitError, match="take -np 4 or fewer"):
        memory.caches(plan(GIB, 8 * GIB, 4 * GIB), 5)


def test_caches_take_a_part_of_what_is_left() -> None:
    # 3 GiB left of which 1 is for the second slot: half of 2 for prompts; a quarter of 2 for 2 slots' states of 0.5
    caches = memory.caches(plan(GIB, 8 * GIB, 4 * GIB), 2)
    assert caches is not None
    assert caches.arguments() == ["--cache-ram", "1024", "--ctx-checkpoints", "1"]
    rich = memory.caches(plan(2 * MIB, 900 * GIB, GIB), 1)
    assert rich is not None
    assert rich.arguments() == ["--cache-ram", "8192", "--ctx-checkpoints", "32"]  # llama.cpp's own
    assert memory.caches(plan(GIB, None, GIB), 8) is None


def test_drafts_of_all_slots_fit_into_a_pass() -> None:
    memory.check_rows(8, 4, 32)
    with pytest.raises(UsageError, match="32 rows, and a pass has 31"):
        memory.check_rows(8, 4, 31)


def test_the_controller_decides_unless_told_otherwise() -> None:
    def said(speculation: Any) -> list[str]:
        settings = ServerSettings(speculation=speculation, defaults={"temperature": 0}).resolved(
            can_draft=True, n_rows=512
        )
        return [word for word in settings.arguments() if "spec-" in word]

    assert "--spec-draft-adaptive" in said(DraftSelf(n_max=7))
    assert "--spec-draft-start-plain" not in said(DraftSelf(n_max=7))
    assert "--spec-draft-adaptive" not in said(DraftSelf(n_max=7, adaptive=False))
    assert "--spec-draft-adaptive" not in said(DraftSelf(n_max=7, accept_ratio=0.9))
    assert {"--spec-draft-adaptive", "--spec-draft-start-plain"} <= set(said("auto"))
    assert not [word for word in said(DraftSelf(n_max=7)) if "ahead" in word]
    assert "--spec-draft-ahead" in said(DraftSelf(n_max=7, ahead=True))
    assert "--no-spec-draft-ahead" in said(DraftSelf(n_max=7, ahead=False))


def test_auto_is_plain_where_nothing_can_be_drafted_and_shorter_where_slots_share_a_pass() -> None:
    auto = ServerSettings(speculation="auto", n_slots=4)
    assert auto.resolved(can_draft=False, n_rows=512).speculation is None
    few = auto.resolved(can_draft=True, n_rows=32).speculation
    assert isinstance(few, DraftSelf)
    assert few.n_max == 7
    assert auto.mode == "plain"
