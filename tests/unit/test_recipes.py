"""Recipes: what they say, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyclover.errors import UsageError
from pyclover.tuning.layer_sets import more_bits, read_layers
from pyclover.tuning.recipes import builtin_names, read_recipe


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "n_layer", "layers"),
    [
        ("3", 8, [3]),
        ("0-2, 7", 8, [0, 1, 2, 7]),
        ("1-7/3", 8, [1, 4, 7]),
        ("first/4", 8, [0, 1]),
        ("last/4", 8, [6, 7]),
        ("first/16", 8, []),
        # llama.cpp's quantizing program prints these layers with Q6_K for a Q4_K_M of 40 layers, and of 8
        ("more_bits", 40, [0, 1, 2, 3, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 35, 36, 37, 38, 39]),
        ("more_bits", 8, [0, 3, 6, 7]),
    ],
)
def test_sets_of_layers(text: str, n_layer: int, layers: list[int]) -> None:
    found = read_layers(text)
    assert found is not None
    assert [i for i in range(n_layer) if found.has(i, n_layer)] == layers


@pytest.mark.parametrize("text", ["", ",", "5-3", "1-5/0", "-1", "first/0", "all", "1.5", "more"])
def test_no_sets_of_layers(text: str) -> None:
    assert read_layers(text) is None


def test_every_layer_is_in_the_pattern_of_one() -> None:
    assert more_bits(0, 1)


def test_own_entries_go_before_the_base_and_layers_before_groups(tmp_path: Path) -> None:
    recipe = read_recipe(
        write(
            tmp_path,
            """
            base: Q4_K_M
            groups: {attention: Q8_0, gdn.qkv: Q5_K, routed_experts.up: Q3_K}
            layers:
              - {in: 0-3, routed_experts: Q6_K}
              - {in: 3, routed_experts.gate: Q2_K}
            """,
        )
    )

    def kind(group: str, part: str, layer: int) -> str:
        return recipe.type_of(group, part, layer, 40).name

    assert recipe.name == "mine"
    assert recipe.file_type == 15  # of the base
    assert kind("attention", "v", 0) == "Q8_0"  # though the base has an entry for this part and layer
    assert (kind("gdn", "qkv", 0), kind("gdn", "gate", 0)) == ("Q5_K", "Q4_K")
    assert (kind("routed_experts", "up", 0), kind("routed_experts", "up", 9)) == ("Q6_K", "Q3_K")
    assert (kind("routed_experts", "gate", 3), kind("routed_experts", "down", 3)) == ("Q2_K", "Q6_K")
    assert (kind("routed_experts", "down", 4), kind("routed_experts", "down", 5)) == ("Q6_K", "Q4_K")  # the base's
    assert (kind("output", "", -1), kind("embedding", "", -1)) == ("Q6_K", "Q4_K")


def test_a_base_may_be_a_file_beside_the_recipe(tmp_path: Path) -> None:
    write(tmp_path, "default: Q5_0\ngroups: {output: F16}\n", "base.yaml")
    recipe = read_recipe(write(tmp_path, "base: base.yaml\ngroups: {gdn: Q8_0}\n"))
    assert recipe.type_of("attention", "q", 0, 4).name == "Q5_0"
    assert recipe.type_of("output", "", -1, 4).name == "F16"
    assert recipe.type_of("gdn", "out", 0, 4).name == "Q8_0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("default: Q4_X\n", "'default' is 'Q4_X': it is no type of weights; there are F32, F16, "),
        ("default: Q8_K\n", "'default' is 'Q8_K': it is no type of weights"),
        ("default: 4\n", "'default' is 4: it is no type of weights"),
        ("groups: {output: Q8_0}\n", "neither 'default' nor 'base' is given; one must be"),
        ("default: Q4_K\ngroup: {}\n", "'group' is no key of a recipe; there are description, base, "),
        (
            "default: Q4_K\ngroups: {attentoin: Q8_0}\n",
            "'groups.attentoin' is no group of tensors; there are attention",
        ),
        ("default: Q4_K\ngroups: {gdn.q: Q8_0}\n", "'groups.gdn.q' is no part of 'gdn', which has qkv, gate, "),
        ("default: Q4_K\ngroups: {output.q: Q8_0}\n", "'groups.output.q' is no part of 'output', which has no parts"),
        ("default: Q4_K\ngroups: {clover: Q8_0}\n", "'groups.clover' is 'Q8_0': it must be F32"),
        ("default: Q4_K\ngroups: [a]\n", "'groups' is ['a']: it must map groups of tensors to types"),
        ("default: Q4_K\nlayers: {in: 1}\n", "'layers' is {'in': 1}: it must be a list"),
        ("default: Q4_K\nlayers: [{gdn: Q8_0}]\n", "'layers[0]' is {'gdn': 'Q8_0'}: it must have 'in'"),
        ("default: Q4_K\nlayers: [{in: 4-2, gdn: Q8_0}]\n", "'layers[0].in' is '4-2': it names no layers; write"),
        ("default: Q4_K\nlayers: [{in: 1, output: Q8_0}]\n", "'layers[0].output' is 'Q8_0': it is for no layer"),
        ("base: Q9\n", "'base' is 'Q9': it is neither a file beside this one nor one of BF16, Q8_0"),
        ("base: mine.yaml\n", "'base' is 'mine.yaml': it leads in a circle"),
        ("base: Q8_0\nfile_type: Q9\n", "'file_type' is 'Q9': it must be one of F32, F16, "),
        ("base: Q8_0\nbase: Q6_K\n", "is no YAML: the key 'base' is given twice"),
        ("default: &a Q4_K\ngroups: {gdn: *a}\n", "is no YAML: '*a' is an alias, which no recipe needs: write out"),
        ("default: Q4_K\ngroups: &g {}\nlayers: [<<: *g]\n", "'*g' is an alias"),
        (
            "default: &a0 [x, x]\n" + "".join(f"b{i}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(60)) + "layers: *a60",
            "'*a0' is an alias",
        ),
        ("? [a]\n: b\n", "is no YAML: while constructing a mapping"),
        ("description: 2024-13-45\ndefault: Q4_K\n", "is no YAML: a value is not what it looks like (month must be in"),
        ("default: !!int x\n", "is no YAML: a value is not what it looks like"),
        ("default: !!bool x\n", "is no YAML: a value is not what it looks like"),
        ("default: !!timestamp x\n", "is no YAML: a value is not what it looks like"),
        (f"default: {'1' * 5000}\n", "is no YAML: a value is not what it looks like"),
        ("default: Q4_K\nfile_type: []\n", "'file_type' is []: it must be one of F32"),
        ("<<: {default: Q4_K}\n", "is no YAML: could not determine a constructor"),
        ("default: [\n", "is no YAML: while parsing"),
        ("- a\n", "is no recipe: it must have keys such as "),
        ("", "is no recipe: it must have keys such as "),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as error:
        read_recipe(path)
    assert str(error.value).startswith(str(path))
    assert words in str(error.value)
    assert error.value.option == "recipe"
    assert "\n" not in str(error.value)


def test_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no recipe 'Q4_K_X': give the path of a YAML file, or one of BF16"):
        read_recipe("Q4_K_X")
    with pytest.raises(UsageError, match="the recipe cannot be read: No such file"):
        read_recipe(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="more than 65536 bytes"):
        read_recipe(write(tmp_path, "#" * 70_000))
    with pytest.raises(UsageError, match="must be a path"):
        read_recipe(3)  # type: ignore[arg-type]


def test_recipes_of_the_package() -> None:
    names = builtin_names()
    assert {"Q8_0", "Q4_K_M", "Q4_K_M-hq", "Q4_K_M-exps-Q3_K", "Q2_K"} <= set(names)
    assert read_recipe("q4_k_m") == read_recipe("Q4_K_M")
    for name in names:
        recipe = read_recipe(name)
        assert recipe.description
        assert recipe.source == ""
        for group in ("attention", "gdn", "shared_expert"):
            parts = {"attention": "q", "gdn": "gate", "shared_expert": "up"}
            if name.endswith("-hq"):
                assert recipe.type_of(group, parts[group], 0, 40).name == "Q8_0"
    experts = read_recipe("Q4_K_M-exps-Q3_K")
    plain = read_recipe("Q4_K_M")
    assert {experts.type_of("routed_experts", p, 0, 40).name for p in ("gate", "up", "down")} == {"Q3_K"}
    assert experts.type_of("gdn", "qkv", 0, 40) == plain.type_of("gdn", "qkv", 0, 40)
