"""`clover-run generate` against a scripted model: exact text on both streams, exit codes, keywords passed on."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyclover import errors
from pyclover.cli import prompts
from pyclover.cli.main import cli
from pyclover.engine.speculation import BlockDiffusion, DraftSelf

SPEED = "plain: prompt 12 tokens, 340.1 tok/s; generated 3 tokens, 152.3 tok/s\n"
NOTE = "note: no -m given, so this is tiny, the small model in the package; docs/tiny.md says what it can do.\n"


@dataclass
class FakeStats:
    mode: str = "plain"
    n_prompt: int = 12
    n_prompt_reused: int = 0
    n_prompt_read: int = 12
    n_generated: int = 3
    prompt_tok_per_s: float = 340.12
    decode_tok_per_s: float = 152.34
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    previews: int = 0
    commits: int = 0
    tokens_per_pass: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {"mode": self.mode, "n_generated": self.n_generated, "decode_tok_per_s": self.decode_tok_per_s}


@dataclass
class FakePiece:
    text: str
    tokens: tuple[int, ...] = ()
    stats: FakeStats | None = None
    finish_reason: str | None = None
    stop: str | None = None
    block: tuple[int | None, ...] | None = None


@dataclass
class Script:
    """What the fake model does, and what it was asked to do."""

    pieces: Sequence[FakePiece | BaseException] = ()
    load_error: BaseException | None = None
    warnings: tuple[str, ...] = ()
    opened: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    n_closed: int = 0
    n_cancelled: int = 0

    def model(self) -> type:
        script = self

        class FakeClover:
            warnings = script.warnings

            def __init__(
                self, model: str = "tiny", *, progress: Callable[[float], object] | None = None, **options: Any
            ):
                assert progress is None, "no terminal, so nobody sees a progress bar"
                script.opened.append((model, options))
                if script.load_error is not None:
                    raise script.load_error

            def __enter__(self) -> FakeClover:
                return self

            def __exit__(self, *_: object) -> None:
                script.n_closed += 1

            def stream(self, prompt: str, **options: Any) -> Iterator[FakePiece]:
                script.asked.append((prompt, options))
                for piece in script.pieces:
                    if isinstance(piece, BaseException):
                        raise piece
                    yield piece

            def cancel(self) -> None:
                script.n_cancelled += 1

        return FakeClover


HELLO = (FakePiece("Hel", (1,)), FakePiece("lo"), FakePiece(" ☘", (2, 3), FakeStats(), "length"))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script(pieces=HELLO)

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name == "Clover":
                return made.model()
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "pyclover.clover", Module("pyclover.clover"))
    native = types.ModuleType("pyclover.engine.sampler")
    native.grammar_of = lambda settings: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyclover.engine.sampler", native)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def run(*args: str, stdin: str | bytes | None = None, env: Mapping[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(cli, ["generate", *args], input=stdin, env=env, prog_name="clover-run")


def test_text_to_stdout_and_speed_to_stderr(script: Script) -> None:
    result = run("-m", "m.gguf", "-p", "Hi", "-n", "3")
    assert result.stdout == "Hello ☘\n"
    assert result.stderr == SPEED
    assert result.exit_code == 0
    assert script.opened == [("m.gguf", {})]
    assert script.asked == [("Hi", {"max_tokens": 3, "stop": ()})]
    assert script.n_closed == 1


def test_without_a_model_the_sample_is_used_and_named(script: Script) -> None:
    result = run("-p", "Hi")
    assert result.stderr == NOTE + SPEED
    assert script.opened == [("tiny", {})]


def test_quiet_is_the_text_alone(script: Script) -> None:
    script.warnings = ("something to know",)
    result = run("-p", "Hi", "-q")
    assert (result.stdout, result.stderr, result.exit_code) == ("Hello ☘\n", "", 0)


def test_a_text_that_ends_its_line_gets_no_second_line_end(script: Script) -> None:
    script.pieces = [FakePiece("done\n", (1,), FakeStats(), "stop")]
    assert run("-p", "Hi", "-q").stdout == "done\n"


def test_warnings_of_the_model_go_to_stderr(script: Script) -> None:
    script.warnings = ("clover_moe.expert_shared_count is missing: 1 assumed", "odd \x1b[31mname")
    result = run("-m", "m.gguf", "-p", "Hi")
    assert result.stdout == "Hello ☘\n"
    assert result.stderr == (
        "warning: clover_moe.expert_shared_count is missing: 1 assumed\nwarning: odd \\x1b[31mname\n" + SPEED
    )


def test_json_is_one_object(script: Script) -> None:
    stats = FakeStats(decode_tok_per_s=math.nan)
    script.pieces = [FakePiece("Hel", (7,)), FakePiece("lo ☘", (8, 9)), FakePiece("", (), stats, "stop", "\n")]
    script.warnings = ("w",)
    result = run("-m", "m.gguf", "-p", "Hi", "--json")
    assert result.exit_code == 0
    assert result.stderr == "warning: w\n"
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout) == {
        "model": "m.gguf",
        "text": "Hello ☘",
        "tokens": [7, 8, 9],
        "finish_reason": "stop",
        "stop": "\n",
        "stats": {"mode": "plain", "n_generated": 3, "decode_tok_per_s": None},
        "warnings": ["w"],
    }


def test_a_speed_that_was_not_measured_is_not_shown_as_zero(script: Script) -> None:
    stats = FakeStats(
        n_prompt=5, n_prompt_reused=4, n_prompt_read=1, n_generated=0, prompt_tok_per_s=10.0, decode_tok_per_s=0.0
    )
    script.pieces = [FakePiece("", (), stats, "stop")]
    result = run("-m", "m", "-p", "Hi")
    assert result.stderr == "plain: prompt 5 tokens (4 reused), 10.0 tok/s; generated 0 tokens, - tok/s\n"
    assert result.stdout == ""


MODEL_FLAGS = [
    (["-c", "512"], {"n_ctx": 512}),
    (["-c", "0"], {"n_ctx": 0}),
    (["--ctx-size", "512"], {"n_ctx": 512}),
    (["-b", "64", "-ub", "32"], {"n_batch": 64, "n_ubatch": 32}),
    (["--batch-size", "64", "--ubatch-size", "32"], {"n_batch": 64, "n_ubatch": 32}),
    (["-ngl", "99"], {"n_gpu_layers": 99}),
    (["-ngl", "-1"], {"n_gpu_layers": -1}),
    (["-ngl", "all"], {"n_gpu_layers": -1}),
    (["--gpu-layers", "auto"], {}),
    (["--n-gpu-layers=7"], {"n_gpu_layers": 7}),
    (["-ncmoe", "12"], {"n_cpu_moe": 12}),
    (["--n-cpu-moe", "all"], {"n_cpu_moe": -1}),
    (["--n-cpu-moe", "auto"], {}),
    (["--no-fit"], {"fit": False}),
    (["-t", "4", "-tb", "8"], {"n_threads": 4, "n_threads_batch": 8}),
    (["-t", "-1", "-tb", "0"], {}),
    (["-fa", "on"], {"flash_attn": True}),
    (["-fa", "off"], {"flash_attn": False}),
    (["--flash-attn", "auto"], {"flash_attn": "auto"}),
    (["--flash-attn", "--color"], {"flash_attn": True}),
    (["-ctk", "q8_0", "-ctv", "F32"], {"cache_type_k": "q8_0", "cache_type_v": "f32"}),
    (["--cache-type-k", "bf16", "--cache-type-v", "iq4_nl"], {"cache_type_k": "bf16", "cache_type_v": "iq4_nl"}),
    (["--no-mmap"], {"mmap": False}),
]


@pytest.mark.parametrize(("flags", "keywords"), MODEL_FLAGS, ids=lambda value: " ".join(value))
def test_model_flags(script: Script, flags: list[str], keywords: dict[str, Any]) -> None:
    result = run("-p", "Hi", *flags)
    assert result.exit_code == 0, result.stderr
    assert script.opened == [("tiny", keywords)]


SAMPLING_FLAGS = [
    (["--temp", "0"], {"temperature": 0.0}),
    (["--temperature", "-1"], {"temperature": 0.0}),
    (["--top-k", "5", "--top-p", "0.5", "--min-p", "0.1"], {"top_k": 5, "top_p": 0.5, "min_p": 0.1}),
    (["--typical", "0.7"], {"typical_p": 0.7}),
    (["--repeat-penalty", "1.1", "--repeat-last-n", "0"], {"repeat_penalty": 1.1, "repeat_last_n": 0}),
    (["--frequency-penalty", "0.2"], {"frequency_penalty": 0.2}),
    (["--presence-penalty", "-0.2"], {"presence_penalty": -0.2}),
    (["--dry-multiplier", "0.8", "--dry-base", "2"], {"dry_multiplier": 0.8, "dry_base": 2.0}),
    (["--dry-allowed-length", "3"], {"dry_allowed_length": 3}),
    (["--dry-penalty-last-n", "32"], {"dry_penalty_last_n": 32}),
    (["--dry-penalty-last-n", "-1", "--repeat-last-n", "-1"], {"dry_penalty_last_n": -1, "repeat_last_n": -1}),
    (["--dry-base", "0.5"], {"dry_base": 0.5}),
    (["--grammar", "root ::= [\udcc3\udca9]"], {"grammar": "root ::= [é]"}),
    (["-s", "42"], {"seed": 42}),
    (["--seed", "-1"], {}),
    (["--seed", "4294967295"], {}),
    (["--ignore-eos"], {"ignore_eos": True}),
    (["-l", "15043+1", "-l", "7-0.5", "--logit-bias", "15043+2"], {"logit_bias": {15043: 3.0, 7: -0.5}}),
    (["-l", "9-inf"], {"logit_bias": {9: -math.inf}}),
    (["--grammar", 'root ::= "a"'], {"grammar": 'root ::= "a"'}),
    (["-j", '{"type": "object"}'], {"json_schema": {"type": "object"}}),
    (["-n", "-1"], {"max_tokens": None}),
    (["--predict", "-2"], {"max_tokens": None}),
    (["--n-predict", "0"], {"max_tokens": 0}),
    (["-r", "a", "--stop", "b"], {"stop": ("a", "b")}),
    (["--spec-type", "none"], {}),
    (["--spec-type", "none", "--spec-draft-n-max", "4"], {}),
]


@pytest.mark.parametrize(("flags", "keywords"), SAMPLING_FLAGS, ids=lambda value: " ".join(map(str, value)))
def test_request_flags(script: Script, flags: list[str], keywords: dict[str, Any]) -> None:
    result = run("-p", "Hi", *flags)
    assert result.exit_code == 0, result.stderr
    assert script.asked == [("Hi", {"max_tokens": None, "stop": (), **keywords})]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--temp", "nan"], "temperature is nan: it must be at most 10000.0 (flag: --temperature)"),
        (["--top-p", "4"], "top_p is 4.0: it must be between 0 and 1 (flag: --top-p)"),
        (["--top-k", "3000000000"], "top_k is 3000000000: it must be between -2147483648 and 2147483647 "
            "(flag: --top-k)"),
        (["-l", "5+1e40"], "logit_bias of token 5 is 1e+40: it must be a number between -1e30 and 1e30, or -inf "
            "(flag: --logit-bias)"),
        (["--dry-base", "-1"], "dry_base is -1.0: it must be between 0 and 100 (flag: --dry-base)"),
    ],
)  # fmt: skip
def test_sampling_is_checked_before_a_model_is_loaded(script: Script, flags: list[str], sentence: str) -> None:
    result = run("-p", "Hi", *flags)
    assert (result.stderr, result.exit_code) == (f"Error: {sentence}\n", 2)
    assert script.opened == []


def test_a_grammar_is_checked_before_a_model_is_loaded(script: Script) -> None:
    result = run("-p", "Hi", "--grammar", 'root ::= "a"{5,2}')
    assert result.stderr.startswith("Error: the grammar repeats something {5,2} times")
    assert result.exit_code == 1
    assert script.opened == []


def test_the_note_says_what_was_given(script: Script) -> None:
    assert run("-p", "Hi", "-m", "tiny").stderr == SPEED


def test_endless_files_are_not_read_to_their_end(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "MAX_BYTES", 1 << 20)
    long = tmp_path / "long"
    long.touch()
    os.truncate(long, 1 << 40)
    for flags in (["-f", long], ["-p", "Hi", "--grammar-file", long], ["-p", "Hi", "-jf", long]):
        result = run(*map(str, flags))
        assert said(result).endswith(f"{long}: longer than 1 MiB, which is the limit.\n")
        assert result.exit_code == 2
    assert said(run(stdin="x" * (1 << 20) + "y")) == "standard input: longer than 1 MiB, which is the limit.\n"
    assert run(stdin="x" * (1 << 20)).exit_code == 0


def test_a_grammar_from_standard_input(script: Script) -> None:
    assert run("-p", "Hi", "--grammar-file", "-", stdin='root ::= "a"\r\n').exit_code == 0
    assert script.asked[0][1]["grammar"] == 'root ::= "a"\n'


def test_grammar_and_schema_from_files(script: Script, tmp_path: Path) -> None:
    (tmp_path / "g.gbnf").write_text('root ::= "é"\n', encoding="utf-8")
    (tmp_path / "s.json").write_text('{"type": "array"}', encoding="utf-8")
    assert run("-p", "Hi", "--grammar-file", str(tmp_path / "g.gbnf")).exit_code == 0
    assert run("-p", "Hi", "-jf", str(tmp_path / "s.json")).exit_code == 0
    assert script.asked[0][1]["grammar"] == 'root ::= "é"\n'
    assert script.asked[1][1]["json_schema"] == {"type": "array"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"a\nb", "a\nb"),
        (r"\t\r\'\"\\n", "\t\r'\"\\n"),
        (r"\x41\xc3\xa9", "Aé"),
        (r"\q \x4 \xzz", r"\q \x4 \xzz"),
        ("end\\", "end\\"),
        ("é\\n", "é\n"),
    ],
)
def test_escapes_in_the_prompt(script: Script, typed: str, meant: str) -> None:
    run("-p", typed)
    run("-p", typed, "--no-escape")
    run("-p", typed, "-e")
    assert [prompt for prompt, _ in script.asked] == [meant, typed, meant]


def test_escapes_in_a_stop(script: Script) -> None:
    run("-p", "x", "-r", r"\n\n")
    run("-p", "x", "-r", r"\n\n", "--no-escape")
    assert [options["stop"] for _, options in script.asked] == [("\n\n",), (r"\n\n",)]


def test_prompt_from_a_file_as_it_is(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes("a\\nb é\n\n".encode())
    assert run("-f", str(path)).exit_code == 0
    assert script.asked[0][0] == "a\\nb é\n"  # no escapes, one line end dropped


@pytest.mark.parametrize("flags", [(), ("-f", "-")])
def test_prompt_from_standard_input(script: Script, flags: tuple[str, ...]) -> None:
    assert run(*flags, stdin="from a pipe\r\n").exit_code == 0
    assert script.asked[0][0] == "from a pipe"


def test_display_prompt(script: Script) -> None:
    assert run("-p", "Hi ", "--display-prompt", "-q").stdout == "Hi Hello ☘\n"
    result = CliRunner().invoke(cli, ["generate", "-p", "Hi ", "--display-prompt", "-q", "--color"], color=True)
    assert result.stdout == "\x1b[33mHi \x1b[0mHello ☘\n"


def said(result: Result) -> str:
    """The sentence below click's own two lines on usage."""
    head, _, sentence = result.stderr.partition("\n\nError: ")
    assert head.startswith("Usage: clover-run generate [OPTIONS]\nTry 'clover-run generate ")
    return sentence


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "no prompt: give one with -p TEXT or -f FILE, or pipe it into standard input."),
        (["-p", ""], "the prompt is empty: give some text with -p TEXT or -f FILE."),
        (["-f", os.devnull], "the prompt is empty: give some text with -p TEXT or -f FILE."),
        (["-p", "a", "-f", "-"], "-p and -f both give a prompt: leave one out."),
        (["-p", "a", "-q", "--json"], "--quiet and --json exclude each other."),
        (["-p", r"\xff"], "-p: not valid UTF-8 text (invalid start byte)."),
        (["-p", "\udcff"], "-p: not valid UTF-8 text."),
        (["-p", "\udcff", "--no-escape"], "-p: not valid UTF-8 text."),
        (["-p", "a", "-r", ""], "-r: an empty text would end every answer at once."),
        (["-p", "a", "-j", "{"], "the JSON schema is not JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)."),
        (["-p", "a", "-j", "[" * 100_000], "the JSON schema is nested too deep."),
        (["-p", "a", "--grammar", "\udcff"], "--grammar: not valid UTF-8 text."),
        (["--grammar-file", "-"], "standard input cannot be both prompt and grammar: give the prompt with -p or -f "
            "FILE."),
        (["-p", "a", "-j", "[]"], 'the JSON schema is not an object; any JSON object would be {"type": "object"}.'),
        (["-p", "a", "-j", "{}", "--grammar", "x"], "--grammar and --json-schema exclude each other: one grammar or "
            "schema at a time."),
        (["-p", "a", "-f", "/no/such/file"], "Invalid value for '-f' / '--file': File '/no/such/file' does not exist."),
        (["-p", "a", "-ngl", "x"], "Invalid value for '-ngl' / '--gpu-layers' / '--n-gpu-layers': 'x' is not a "
            "whole number, all or auto."),
        (["-p", "a", "-ngl", "-2"], "Invalid value for '-ngl' / '--gpu-layers' / '--n-gpu-layers': -2 is less than -1 "
            "(all)."),
        (["-p", "a", "-s", "-2"], "Invalid value for '-s' / '--seed': -2 is not in the range 0 to 4294967294 (or -1 "
            "for a random one)."),
        (["-p", "a", "-l", "5"], "Invalid value for '-l' / '--logit-bias': '5' is not TOKEN_ID, + or -, and a number, "
            "as in 15043+1."),
        (["-p", "a", "-l", "5+nan"], "Invalid value for '-l' / '--logit-bias': '5+nan' is not TOKEN_ID, + or -, and a "
            "number, as in 15043+1."),
        (["-p", "a", "-fa", "maybe"], "Invalid value for '-fa' / '--flash-attn': 'maybe' is none of 'on', 'off', "
            "'auto'."),
        (["-p", "a", "-c", "-5"], "Invalid value for '-c' / '--ctx-size': -5 is not in the range x>=0."),
        (["-p", "a", "--spec-draft-n-max", "4"], "--spec-draft-n-max belongs to --spec-type draft-self."),
        (["-p", "a", "--diffusion-steps", "4"], "--diffusion-steps belongs to --diffusion."),
        (["-p", "a", "--show-blocks"], "--show-blocks belongs to --diffusion."),
        (
            ["-p", "a", "--diffusion", "--spec-type", "draft-self"],
            "--diffusion and --spec-type draft-self exclude each other.",
        ),
        *(
            (
                ["-p", "a", "--spec-type", "draft-self", "--spec-draft-n-max", n],
                f"Invalid value for '--spec-draft-n-max' / '--draft-max' / '--draft': {n} is not in the range "
                "1<=x<=31.",
            )
            for n in ("0", "32", "-1")
        ),
        (
            ["-p", "a", "--spec-type", "draft-self", "--spec-accept-ratio", "1.5"],
            "Invalid value for '--spec-accept-ratio': 1.5 is not in the range 0<=x<=1.",
        ),
        (
            ["-p", "a", "--spec-type", "draft-self", "--spec-accept-delta", "-1"],
            "Invalid value for '--spec-accept-delta': -1.0 is not in the range 0<=x<=1.",
        ),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_sentence_and_code_2(script: Script, flags: list[str], sentence: str) -> None:
    result = run(*flags)
    assert said(result) == sentence + "\n"
    assert (result.stdout, result.exit_code) == ("", 2)
    assert script.opened == []


def drafting(*flags: str) -> list[str]:
    return ["--spec-type", "draft-self", *flags]


SPECULATION_FLAGS = [
    (drafting(), DraftSelf(), 3),
    (drafting("--spec-draft-n-max", "15"), DraftSelf(n_max=15), 15),
    (drafting("--draft-max", "31", "--spec-draft-p-min", "0.5"), DraftSelf(n_max=31, p_min=0.5), 31),
    (drafting("--spec-draft-rows", "16", "--spec-draft-steps", "2"), DraftSelf(block=16, steps=2), 3),
    (
        drafting("--temp", "0", "--spec-accept-ratio", "0.9", "--spec-accept-delta", "0.6"),
        DraftSelf(accept_ratio=0.9, accept_delta=0.6),
        3,
    ),
    (["--diffusion"], BlockDiffusion(), None),
    (
        ["--diffusion", "--diffusion-threshold", "0.9", "--diffusion-block-length", "8", "--diffusion-steps", "4"],
        BlockDiffusion(threshold=0.9, block=8, max_steps=4),
        None,
    ),
]


@pytest.mark.parametrize(("flags", "settings", "n_rs_seq"), SPECULATION_FLAGS)
def test_speculation_flags(script: Script, flags: list[str], settings: Any, n_rs_seq: int | None) -> None:
    result = run("-p", "Hi", *flags)
    assert result.exit_code == 0, result.stderr
    temperature = {"temperature": 0.0} if "--temp" in flags else {}
    assert script.asked == [("Hi", {"max_tokens": None, "stop": (), **temperature, "speculation": settings})]
    assert script.opened == [("tiny", {} if n_rs_seq is None else {"n_rs_seq": n_rs_seq})]


def test_the_line_says_how_drafting_went(script: Script) -> None:
    stats = FakeStats(mode="draft-self (lossless)", rounds=2, drafted=6, accepted=4)
    script.pieces = [FakePiece("Hello", (1, 2, 3), stats, "length")]
    result = run("-m", "m.gguf", "-p", "Hi", *drafting())
    line = "draft-self (lossless): prompt 12 tokens, 340.1 tok/s; generated 3 tokens, 152.3 tok/s"
    assert result.stderr == line + "; accepted 4 of 6 drafted tokens in 2 rounds\n"


def test_the_line_says_how_block_diffusion_went(script: Script) -> None:
    stats = FakeStats(mode="block diffusion", previews=5, commits=2, tokens_per_pass=4.57)
    script.pieces = [FakePiece("Hello", (1, 2, 3), stats, "length")]
    result = run("-m", "m.gguf", "-p", "Hi", "--diffusion")
    line = "block diffusion: prompt 12 tokens, 340.1 tok/s; generated 3 tokens, 152.3 tok/s"
    assert result.stderr == line + "; 5 + 2 passes, 4.6 tokens a pass\n"


def test_a_prompt_file_that_is_not_text(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "p.bin"
    path.write_bytes(b"ok \xff")
    result = run("-f", str(path))
    assert said(result) == f"-f {path}: not UTF-8 text (invalid start byte at byte 3).\n"
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("error", "sentence", "code"),
    [
        (errors.InvalidFileError("m.gguf is no GGUF file.", path="m.gguf"), "m.gguf is no GGUF file.", 1),
        (errors.LoadError("refused:\n  its own\nwords \x1b[2J"), "refused: its own words \\x1b[2J", 1),
        (
            errors.ContextFullError("Needs 900 tokens, the context holds 512.", n_ctx=512, n_needed=900),
            "Needs 900 tokens, the context holds 512. (flag: -c 900 or more)",
            1,
        ),
        (
            errors.OutOfMemoryError("No room for the context."),
            "No room for the context. (flags: a smaller -c, -ub or --spec-draft-n-max, -ctk q8_0 -ctv q8_0, on a GPU "
            "a smaller -ngl)",
            1,
        ),
        (errors.UsageError("top_p is 7, too big.", option="top_p"), "top_p is 7, too big. (flag: --top-p)", 2),
        (errors.UsageError("Something else."), "Something else.", 2),
        (
            ImportError("libcudart.so.13: cannot open shared object file"),
            "the native part of pyclover does not load (libcudart.so.13: cannot open shared object file): install the "
            "package again; `clover-run doctor` checks the installation.",
            1,
        ),
        (PermissionError(13, "Permission denied", "m.gguf"), "m.gguf: Permission denied.", 1),
        (MemoryError(), "not enough memory for Python itself.", 1),
        (
            KeyError("x"),
            "a fault inside pyclover (KeyError: 'x'): please report it with the output of --debug.",
            1,
        ),
    ],
)  # fmt: skip
def test_errors_are_one_sentence(script: Script, error: Exception, sentence: str, code: int) -> None:
    script.load_error = error
    result = run("-m", "m.gguf", "-p", "Hi")
    assert (result.stdout, result.stderr, result.exit_code) == ("", f"Error: {sentence}\n", code)


def test_an_error_in_the_middle_keeps_the_text(script: Script) -> None:
    script.pieces = [FakePiece("Hel", (1,)), errors.NativeError("Decoding failed.")]
    result = run("-m", "m.gguf", "-p", "Hi")
    assert (result.stdout, result.stderr, result.exit_code) == ("Hel\n", "Error: Decoding failed.\n", 1)
    assert script.n_closed == 1


@pytest.mark.parametrize("args", [["--debug", "generate", "-p", "a"], ["generate", "-p", "a", "--debug"]])
def test_debug_shows_the_traceback_too(script: Script, args: list[str]) -> None:
    script.load_error = errors.LoadError("refused.")
    result = CliRunner().invoke(cli, args, prog_name="clover-run")
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert result.stderr.endswith("pyclover.errors.LoadError: refused.\nError: refused.\n")
    assert result.exit_code == 1


def test_ctrl_c_keeps_the_text_and_ends_the_line(script: Script) -> None:
    script.pieces = [FakePiece("Hel", (1,)), KeyboardInterrupt()]
    result = run("-m", "m.gguf", "-p", "Hi")
    assert (result.stdout, result.stderr, result.exit_code) == ("Hel\n", "", 130)
    assert script.n_closed == 1


class Interrupting(FakePiece):
    """A piece before which Ctrl-C is pressed."""

    def __getattribute__(self, name: str) -> Any:
        if name == "text" and not object.__getattribute__(self, "__dict__").get("pressed"):
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return object.__getattribute__(self, name)


def test_the_first_ctrl_c_cancels_and_the_second_interrupts(script: Script) -> None:
    script.pieces = [Interrupting("Hel", (1,)), FakePiece("lo", (2,), FakeStats(), "cancelled")]
    result = run("-m", "m.gguf", "-p", "Hi")
    assert (result.stdout, result.stderr, result.exit_code) == ("Hello\n", SPEED, 130)
    assert 1 <= (n := script.n_cancelled) <= 2  # a timer cancels once more where the run takes so long
    script.pieces = [Interrupting("Hel", (1,)), Interrupting("lo", (2,), FakeStats(), "length")]
    result = run("-m", "m.gguf", "-p", "Hi")
    assert (result.stdout, result.stderr, result.exit_code) == ("Hel\n", "", 130)
    assert script.n_cancelled > n
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_json_of_a_cancelled_run_is_whole(script: Script) -> None:
    script.pieces = [FakePiece("Hel", (1,)), FakePiece("lo", (2, 3), FakeStats(), "cancelled")]
    result = run("-m", "m.gguf", "-p", "Hi", "--json")
    got = json.loads(result.stdout)
    assert (got["text"], got["tokens"], got["finish_reason"], result.exit_code) == (
        "Hello",
        [1, 2, 3],
        "cancelled",
        130,
    )
    assert got["stats"] == FakeStats().to_dict()


def test_json_of_an_interrupted_run_keeps_what_came(script: Script) -> None:
    script.pieces = [FakePiece("Hel", (1,)), KeyboardInterrupt()]
    result = run("-m", "m.gguf", "-p", "Hi", "--json")
    got = json.loads(result.stdout)
    assert (got["text"], got["tokens"], got["finish_reason"], got["stats"]) == ("Hel", [1], "cancelled", None)
    assert result.exit_code == 130


def test_a_prompt_that_was_not_read_to_its_end(script: Script) -> None:
    stats = FakeStats(n_prompt=100, n_prompt_reused=4, n_prompt_read=32, n_generated=0, decode_tok_per_s=0.0)
    script.pieces = [FakePiece("", (), stats, "cancelled")]
    result = run("-m", "m", "-p", "Hi")
    assert result.stderr == "plain: prompt 36 of 100 tokens (4 reused), 340.1 tok/s; generated 0 tokens, - tok/s\n"
    assert result.exit_code == 130


def test_ctrl_c_while_loading(script: Script) -> None:
    script.load_error = KeyboardInterrupt()
    result = run("-m", "m.gguf", "-p", "Hi")
    assert (result.stdout, result.exit_code) == ("", 130)
    assert "Traceback" not in result.stderr


def test_a_cancelled_run_is_130_with_its_speed(script: Script) -> None:
    script.pieces = [FakePiece("Hel", (1,)), FakePiece("lo", (2, 3), FakeStats(), "cancelled")]
    result = run("-m", "m.gguf", "-p", "Hi")
    assert (result.stdout, result.stderr, result.exit_code) == ("Hello\n", SPEED, 130)


def test_a_reader_that_goes_away_is_no_error_message(script: Script) -> None:
    script.pieces = [FakePiece("Hel", (1,)), BrokenPipeError(32, "Broken pipe")]
    result = run("-m", "m.gguf", "-p", "Hi")
    assert (result.stderr, result.exit_code) == ("", 1)
