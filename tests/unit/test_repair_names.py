"""Rules for tensor names, and values for metadata keys."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyclover.errors import RepairError, UsageError
from pyclover.files.known_keys import Typed, known_key, lossless, read_setting, typed
from pyclover.files.tensor_map import apply_rules, check_names, read_rules
from pyclover.files.values import Array, ValueType

NAMES = ["blk.0.bd_c", "blk.11.bd_c", "blk.0.attn_q.weight", "layers.3.conv_right_weight", "output.weight"]
QUIET = settings(max_examples=60, deadline=None, derandomize=True)


def renames(**rules: str) -> dict[str, str]:
    return apply_rules(read_rules(rules), NAMES, "m.gguf")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("output.weight", "head", {"output.weight": "head"}),
        ("blk.*.bd_c", "blk.*.ssm_bd_history_c", {
            "blk.0.bd_c": "blk.0.ssm_bd_history_c", "blk.11.bd_c": "blk.11.ssm_bd_history_c",
        }),
        ("*.*.conv_*_weight", "*.*.*", {"layers.3.conv_right_weight": "layers.3.right"}),
        (r"re:layers[.](\d+)[.]conv_(\w+)_weight", r"blk.\1.ssm_conv1d_\2.weight", {
            "layers.3.conv_right_weight": "blk.3.ssm_conv1d_right.weight",
        }),
        (r"re:(?P<start>blk[.]11[.]).*", r"\g<start>x", {"blk.11.bd_c": "blk.11.x"}),
        ("output.weight", r"a\1b", {"output.weight": r"a\1b"}),  # only a regular expression has groups
        ("*", "*", {}),  # the same names
    ],
)  # fmt: skip
def test_rules(old: str, new: str, found: dict[str, str]) -> None:
    assert renames(**{old: new}) == found


def test_the_first_rule_that_fits_counts() -> None:
    rules = {"blk.0.bd_c": "a", "blk.*.bd_c": "b.*"}
    assert apply_rules(read_rules(rules), NAMES, "m.gguf") == {"blk.0.bd_c": "a", "blk.11.bd_c": "b.11"}


def test_a_rule_for_each_of_many_tensors() -> None:
    """Each is looked up: compared with each other, they would take many minutes."""
    names = [f"blk.{i}.a" for i in range(50_000)]
    found = apply_rules(read_rules({name: name + "b" for name in reversed(names)}), names, "m.gguf")
    assert found == {name: name + "b" for name in names}
    with pytest.raises(RepairError, match=r"there is no tensor 'blk\.50000\.a'"):
        apply_rules(read_rules({"blk.50000.a": "x"}), names, "m.gguf")


def test_rules_that_make_no_sense() -> None:
    for old, new, word in (
        ("", "x", "lacks a name"),
        ("x", "", "lacks a name"),
        ("a.*", "*.*", "more *"),
        ("re:(", "x", "not a regular expression"),
        ("re:(a)", r"\2", "does not go with"),
        ("re:(a)", r"\g<name>", "does not go with"),
    ):
        with pytest.raises(UsageError) as caught:
            read_rules({old: new})
        assert word in str(caught.value)
        assert caught.value.option == "map_tensors"
    for name in ("blk.7.bd_c", "nothing.*", "bd_c", "re:bd_c"):  # a name is matched as a whole
        with pytest.raises(RepairError, match=r"m\.gguf: there is no tensor"):
            renames(**{name: "x"})


def test_names_that_cannot_be() -> None:
    check_names({"a": "b", "b": "a"}, ["a", "b"], "m.gguf")  # an exchange is no clash
    check_names({"a": "x" * 63}, ["a"], "m.gguf")  # ggml keeps 64 bytes with the closing zero
    for change in ({"a": "b"}, {"a": "c", "b": "c"}, {"a": "x" * 64}, {"a": "ä" * 32}, {"a": "x\0y"}):
        with pytest.raises(RepairError) as caught:
            check_names(change, ["a", "b"], "m.gguf")
        assert str(caught.value).startswith("m.gguf: ")


@QUIET
@given(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3), st.lists(st.text(max_size=8), max_size=4))
def test_rules_end_in_names_or_one_of_our_errors(rules: dict[str, str], names: list[str]) -> None:
    found: dict[str, str] = {}
    with suppress(UsageError, RepairError):
        found = apply_rules(read_rules(rules), names, "m")
    assert set(found) <= set(names)
    assert all(old != new for old, new in found.items())


KINDS = {  # type's name -> gguf's own writing of a value
    "uint8": (255, "<B"), "i8": (-128, "<b"), "uint16": (65535, "<H"), "i16": (-1, "<h"), "u32": (2**32 - 1, "<I"),
    "int32": (-5, "<i"), "f32": (0.5, "<f"), "u64": (2**64 - 1, "<Q"), "i64": (-(2**63), "<q"), "f64": (0.1, "<d"),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_settings_of_every_type(name: str) -> None:
    value, form = KINDS[name]
    key, kind, read = read_setting(f"any.key={name}:{value}")
    made = typed(key, read, kind)
    assert (key, made.value) == ("any.key", value)
    wanted = gguf.GGUFValueType[made.kind.name]
    assert struct.pack(form, value) == gguf.GGUFWriter("", "")._pack_val(value, wanted, add_vtype=False)
    array = typed("any.key", [read, read], f"{name}[]").value
    assert isinstance(array, Array)
    assert array.raw == struct.pack(form, value) * 2
    assert array.kind is made.kind


def test_settings_of_text_and_truth() -> None:
    assert read_setting("general.name=str:a=b:c") == ("general.name", "str", "a=b:c")
    assert typed("k", "x", "string") == Typed(ValueType.STRING, "x")
    assert typed("k", read_setting("k=bool:true")[2], "bool") == Typed(ValueType.BOOL, True)
    key, kind, value = read_setting('k=string[]:["a", "ä"]')
    array = typed(key, value, kind).value
    assert isinstance(array, Array)
    assert list(array) == ["a", "ä"]
    # the type follows from the key
    assert typed("clover_moe.ssm.group_count", 2, arch="clover_moe") == Typed(ValueType.UINT32, 2)
    assert typed("clover_moe.rope.freq_base", 1, arch="clover_moe") == Typed(ValueType.FLOAT32, 1.0)
    assert typed("tokenizer.ggml.eos_token_id", 2) == Typed(ValueType.UINT32, 2)
    layers = typed("clover_moe.attention.recurrent_layers", [True, False], arch="clover_moe").value
    assert isinstance(layers, Array)
    assert (layers.kind, layers.raw) == (ValueType.BOOL, b"\1\0")
    # or from what is there
    assert typed("any.key", 3, found=ValueType.INT16) == Typed(ValueType.INT16, 3)


@pytest.mark.parametrize("text", ["", "k", "k=1", "=u32:1", "k=u32:x", "k=u32[]:1,2", "k=bool:yes", "k=f32:"])
def test_settings_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_setting(text)
    assert caught.value.option == "set_metadata"


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("clover_moe.block_count", "4", ""), ("clover_moe.block_count", 4, "uint64"),
        ("clover_moe.block_count", -1, ""), ("clover_moe.block_count", 2**32, ""),
        ("clover_moe.block_count", True, ""), ("clover_moe.block_count", [4], ""),
        ("clover_moe.attention.recurrent_layers", 1, ""), ("clover_moe.rope.freq_base", "x", ""),
        ("clover_moe.rope.freq_base", float("inf"), ""), ("clover_moe.rope.freq_base", 1e39, ""),
        ("tokenizer.ggml.add_bos_token", 1, ""), ("general.name", "a\0b", ""), ("general.name", 1, ""),
        ("any", 1, ""), ("any", None, ""), ("any", [], ""), ("any", 1, "uint32[]"), ("any", [1], "uint32"),
        ("any", 256, "u8"), ("any", 1.5, "u8"), ("any", "\ud800", "string"), ("any", [1, "a"], "u8[]"),
        ("any", [1], "array"),
    ],
)  # fmt: skip
def test_values_that_do_not_go(key: str, value: Any, kind: str) -> None:
    with pytest.raises(UsageError) as caught:
        typed(key, value, kind, arch="clover_moe")
    assert key in str(caught.value)


def test_known_keys_have_the_types_that_llama_cpp_reads() -> None:
    """FACTS and the oracle's files: every key of a model that loads upstream is known by its type."""
    from support import ORACLE

    from pyclover.files import read_header

    for path in sorted(ORACLE.glob("expected*/*.gguf")):
        header = read_header(path)
        for key, kind in header.kinds.items():
            known = known_key(key, "clover_moe")
            assert known is not None, key
            value = header.metadata[key]
            assert value.kind in known.elements if isinstance(value, Array) else known.kind is kind, key


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (4, ValueType.UINT32, 4), (-1, ValueType.UINT32, None), (2**32, ValueType.UINT32, None),
        (4.0, ValueType.UINT32, 4), (4.5, ValueType.UINT32, None), (1, ValueType.BOOL, True), (2, ValueType.BOOL, None),
        (16777217, ValueType.FLOAT32, None), (0.1, ValueType.FLOAT32, struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("4", ValueType.UINT32, None), (float("nan"), ValueType.UINT32, None), (1e300, ValueType.FLOAT32, None),
    ],
)  # fmt: skip
def test_what_another_type_can_hold(value: Any, kind: ValueType, found: Any) -> None:
    assert lossless(value, kind) == found
