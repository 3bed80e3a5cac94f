"""Names, checksums, sets of files and the catalogue: what needs no hub."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyclover.errors import DownloadError, IncompleteSetError, ModelNotFoundError, UsageError
from pyclover.hub import catalogue
from pyclover.hub.checksums import digest_bytes, digest_file, parse_sums, sum_for
from pyclover.hub.listing import HubFile, Offer, choose, offers_of, size
from pyclover.hub.names import ModelName, check_file_name, check_revision, is_commit, parse_name, quant_of
from pyclover.hub.patience import Retry
from pyclover.hub.progress import DownloadProgress, Meter

REPO = "owner/Clover-GGUF"


@pytest.mark.parametrize(
    ("name", "quant", "expected"),
    [
        ("owner/repo", None, ModelName("owner/repo")),
        ("owner/repo:Q4_K_M", None, ModelName("owner/repo", "Q4_K_M")),
        ("owner/repo", "Q8_0", ModelName("owner/repo", "Q8_0")),
        ("owner/repo:q8_0", "Q8_0", ModelName("owner/repo", "q8_0")),
        (" owner/repo-1.5_x ", None, ModelName("owner/repo-1.5_x")),
        ("auto", None, ModelName(None)),
        ("AUTO", "Q4_0", ModelName(None, "Q4_0")),
    ],
)
def test_names(name: str, quant: str | None, expected: ModelName) -> None:
    assert parse_name(name, quant=quant) == expected


@pytest.mark.parametrize(
    "name",
    ["", "repo", "a/b/c", "owner/repo:", "../repo", "owner/..", "owner/a--b", "owner/a..b", "owner/.x", "/owner/repo",
     "owner/repo.git", "owner/re po", "owner/r\0", "owner\\repo", "owner/" + "r" * 96, "owner/re\npo", "ownér/repo"],
)  # fmt: skip
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_name(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("https://huggingface.co/owner/repo", "is an address: write the repository's name, such as owner/repo:Q4_K_M"),
        ("http://h/owner/repo/blob/main/x.gguf?a=/b/c", "such as owner/repo:Q4_K_M"),
        ("HTTPS://h/", "such as owner/repo:Q4_K_M"),
        ("tiny", "tiny comes with the package: there is nothing to download"),
    ],
)
def test_what_people_write_instead_of_a_name(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        parse_name(name)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("n_retries", [-1, 1.5, True, "3", None]),
        ("wait_s", [-0.1, float("nan"), float("inf"), "1", True, None, 86_401]),
        ("max_wait_s", [-1, float("nan"), 86_401]),
        ("timeout_s", [0, -1, float("nan"), float("inf"), None]),
    ],
)
def test_patience_that_is_none(option: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(UsageError, match=f"{option} is ") as caught:
            Retry(**{option: value})
        assert caught.value.option == option


@pytest.mark.parametrize(
    ("given", "seconds"), [("300", 300), ("0", 20), ("x", 20), ("-3", 20), ("²", 20), ("9" * 9, 86_400)]
)
def test_silence_on_the_line(given: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", given)
    assert Retry().timeout_s == seconds


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 bytes"),
        (99_999, "99999 bytes"),
        (5_213_728, "4.97 MiB"),
        (107_374_183, "0.10 GiB"),
        (23_000_000_000, "21.42 GiB"),
    ],
)
def test_sizes_in_messages(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text


def test_two_quants_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="contradict"):
        parse_name("owner/repo:Q8_0", quant="Q4_0")


@pytest.mark.parametrize("revision", ["", "a/../b", "-x", "a b", "refs//x", "a\n"])
def test_revisions_that_are_none(revision: str) -> None:
    with pytest.raises(UsageError):
        check_revision(revision)


def test_revisions() -> None:
    assert check_revision(None) == "main"
    assert check_revision("refs/pr/3") == "refs/pr/3"
    assert is_commit("0c1e57098" + "0" * 31)
    assert not is_commit("main")


# Names as quantizers and model hubs write them.
@pytest.mark.parametrize(
    ("stem", "quant"),
    [
        ("Clover-35B-A3B-Preview-Q4_K_M", "Q4_K_M"),
        ("Clover-35B-A3B-Preview-Q8_0", "Q8_0"),
        ("Clover-35B-A3B-Preview-BF16", "BF16"),
        ("Clover-35B-A3B-Preview-Q3_K_M-hq", "Q3_K_M-hq"),
        ("Clover-35B-A3B-Preview-UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("Clover-35B-A3B-Preview.i1-IQ2_XXS", "i1-IQ2_XXS"),
        ("clover-35b-q5_k_s", "q5_k_s"),
        ("Clover-MXFP4_MOE", "MXFP4_MOE"),
        ("clover-TQ1_0", "TQ1_0"),
        ("Clover-from-Q8_0-IQ4_NL", "IQ4_NL"),
        ("Clover-APEX-I-NanoPlus-V2.1", "Clover-APEX-I-NanoPlus-V2.1"),
        ("Clover-35B-A3B-Preview", "Clover-35B-A3B-Preview"),
        ("model-f16", "f16"),
        ("Q4_0", "Q4_0"),
    ],
)
def test_the_quantization_in_a_name(stem: str, quant: str) -> None:
    assert quant_of(stem) == quant


@pytest.mark.parametrize(
    "name",
    ["../x.gguf", "a/../x.gguf", "/etc/x.gguf", "a\\x.gguf", "C:x.gguf", "x\0.gguf", "a//x.gguf", "./x.gguf", "", "a/",
     " x.gguf", "x.gguf ", "a\nb.gguf", "x" * 300 + ".gguf", "x\x1b[2J.gguf", "\u202ex.gguf", "\ud800.gguf", None, 7],
)  # fmt: skip
def test_file_names_that_lead_elsewhere(name: object) -> None:
    with pytest.raises(DownloadError) as caught:
        check_file_name(name, REPO)
    assert caught.value.reason == "server"
    assert "\n" not in str(caught.value)


@given(st.text())
def test_an_accepted_file_name_stays_in_its_folder(name: str) -> None:
    try:
        check_file_name(name, REPO)
    except DownloadError:
        return
    inside = (Path("/folder") / name).parts
    assert inside[:2] == ("/", "folder")
    assert len(inside) > 2
    assert ".." not in inside
    assert "\\" not in name


def test_sums_of_both_spellings() -> None:
    one, two, three = ("a" * 64, "B" * 64, "c" * 64)
    text = f"{one}  x.gguf\n{two} *dir/y.gguf\r\nSHA256 (./z z.gguf) = {three}\n# note\n\nabc  short.gguf\n"
    assert parse_sums(text) == {"x.gguf": one, "dir/y.gguf": two.lower(), "z z.gguf": three}


@given(st.text())
def test_sums_of_anything(text: str) -> None:
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in parse_sums(text).values())


def test_sums_of_a_folder_are_about_its_files() -> None:
    sums = {"": {"x.gguf": "1"}, "q8": {"x.gguf": "2"}}
    assert sum_for("x.gguf", sums) == "1"
    assert sum_for("q8/x.gguf", sums) == "2"
    assert sum_for("q4/x.gguf", sums) is None


def test_digests(tmp_path: Path) -> None:
    # `printf hello | sha256sum` and `printf hello | git hash-object --stdin`
    sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"
    path = tmp_path / "x"
    path.write_bytes(b"hello")
    steps: list[int] = []
    digests = digest_file(path, git=True, step=steps.append)
    assert (digests.size, digests.sha256, digests.git_sha1) == (5, sha256, git)
    assert digest_bytes(b"hello") == digests
    assert steps == [5]


def files(*names: str, size: int = 10) -> list[HubFile]:
    return [HubFile(name, size + i, hashlib.sha256(name.encode()).hexdigest()) for i, name in enumerate(names)]


def test_sets() -> None:
    offers = offers_of(
        REPO,
        files(
            "big/C-Q8_0-00002-of-00002.gguf", "C-Q4_0.gguf", "big/C-Q8_0-00001-of-00002.gguf", "mmproj-C-F16.gguf",
            "C.imatrix.gguf", "README.md", "config.json",
        ),
    )  # fmt: skip
    assert [(o.quant, [f.name for f in o.files], o.missing) for o in offers] == [
        ("Q8_0", ["big/C-Q8_0-00001-of-00002.gguf", "big/C-Q8_0-00002-of-00002.gguf"], ()),
        ("Q4_0", ["C-Q4_0.gguf"], ()),
    ]
    assert offers[0].n_bytes == 12 + 10


def test_sets_with_the_same_quantization_have_their_whole_names() -> None:
    quants = [o.quant for o in offers_of(REPO, files("a/C-Q8_0.gguf", "b/C-Q8_0.gguf", "C-Q4_0.gguf"))]
    assert sorted(quants) == ["Q4_0", "a/C-Q8_0", "b/C-Q8_0"]


def test_an_incomplete_set_is_refused_by_name() -> None:
    offers = offers_of(REPO, files("C-Q8_0-00001-of-00003.gguf", "C-Q8_0-00003-of-00003.gguf"))
    with pytest.raises(IncompleteSetError, match=r"C-Q8_0-00002-of-00003\.gguf") as caught:
        choose(REPO, offers, "q8_0")
    assert caught.value.missing == ("C-Q8_0-00002-of-00003.gguf",)


def test_a_checkpoint_is_one_set() -> None:
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json", "README.md",
             "chat_template.jinja", "other/x.json")  # fmt: skip
    (offer,) = offers_of(REPO, files(*names))
    assert offer.quant == "safetensors"
    assert {f.name for f in offer.files} == {*names[:3], "chat_template.jinja"}
    (broken,) = offers_of(REPO, files(*names[1:]))
    assert broken.missing == (names[0],)


def offer(quant: str, n_bytes: int) -> Offer:
    return Offer(REPO, quant, (HubFile(f"C-{quant}.gguf", n_bytes, "0" * 64),))


OFFERS = (offer("BF16", 70), offer("Q8_0", 37), offer("Q4_K_M", 22), offer("Q4_0", 18))


@pytest.mark.parametrize(("quant", "expected"), [(None, "Q4_K_M"), ("q4_0", "Q4_0"), ("Q8_0", "Q8_0")])
def test_the_choice(quant: str | None, expected: str) -> None:
    assert choose(REPO, OFFERS, quant).quant == expected


def test_choices_that_cannot_be_made() -> None:
    with pytest.raises(ModelNotFoundError, match=r"no Q2_K; there are BF16 .*Q4_0"):
        choose(REPO, OFFERS, "Q2_K")
    with pytest.raises(ModelNotFoundError, match="say which"):
        choose(REPO, (offer("Q8_0", 2), offer("Q5_0", 1)), None)
    with pytest.raises(ModelNotFoundError, match="no GGUF"):
        choose(REPO, (), None)


def test_other_content_has_another_folder() -> None:
    one, same = offer("Q4_0", 18), Offer("someone/else", "Q4_0", offer("Q4_0", 18).files)
    other = Offer(REPO, "Q4_0", (HubFile("C-Q4_0.gguf", 18, "1" * 64),))
    assert one.key == same.key
    assert one.key != other.key
    evil = Offer(REPO, "../../x", one.files).key
    assert "/" not in evil
    assert not evil.startswith(".")


def test_the_built_in_catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYCLOVER_CONFIG", str(tmp_path))
    entries = {entry.repo: entry for entry in catalogue.entries()}
    official = entries["Diffuspace/Clover-35B-A3B-Preview-GGUF"]
    # as the makers publish them: 35.26, 21.42 and 18.24 GiB
    assert official.quants == {
        "Q8_0": round(35.26 * 2**30), "Q4_K_M": round(21.42 * 2**30), "Q4_0": round(18.24 * 2**30)
    }  # fmt: skip
    assert entries["IsValorum/Clover-35B-A3B-Preview-BF16-GGUF"].quants == {"BF16": 69_380_000_000}
    assert catalogue.auto_repositories()[0][0] == official.repo
    assert len(entries) == 7


def test_own_entries_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYCLOVER_CONFIG", str(tmp_path))
    (tmp_path / "catalogue.yaml").write_text(
        "repositories:\n"
        "- {repo: me/mine, auto: true, quants: {Q2_K: 11.70 GiB}}\n"
        "- {repo: AtomicChat/Clover-35B-A3B-Preview-GGUF, note: mine now}\n"
    )
    entries = catalogue.entries()
    assert [entry.repo for entry in entries[:2]] == ["me/mine", "AtomicChat/Clover-35B-A3B-Preview-GGUF"]
    assert len(entries) == 8
    own, ours = catalogue.auto_repositories()
    assert own == ("me/mine",)
    assert ours[0] == "Diffuspace/Clover-35B-A3B-Preview-GGUF"
    assert entries[0].source == str(tmp_path / "catalogue.yaml")


# lists of lists: written out, the last one would take gigabytes
LAUGHS = "".join(f"{name}: &{name} [{inside}]\n" for name, inside in [
    ("a", "x"), *((b, ", ".join([f"*{a}"] * 20)) for a, b in itertools.pairwise("abcdefghi"))
])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [", "no YAML in line 1"),
        ("[]", '"repositories"'),
        ("repositories: [x]", "entry 1"),
        ("repositories: [{repo: nothing}]", "entry 1, key repo"),
        ("repositories: [{repo: a/b}, {repo: a/c, size: 3}]", "entry 2 has an unknown key 'size'"),
        ("repositories: [{repo: a/b, auto: 1}]", "key auto: yes or no (without quotes) is wanted, not 1"),
        ("repositories: [{repo: a/b, note: 1}]", "key note: text (in quotes) is wanted, not 1"),
        ("repositories: [{repo: a/b}, {repo: a/c}, {repo: A/B}]", "entries 1 and 3 are both about A/B"),
        ("repositories: [{repo: a/b,\n repo: a/c}]", "no YAML in line 2 ('repo' is there twice)"),
        ("repositories: [{repo: a/b, quants: {Q4_0: 1 GB, Q4_0: 2 GB}}]", "'Q4_0' is there twice"),
        (f"repositories: [{{repo: a/b, quants: {{Q4_0: {'9' * 400} GB}}}}]", "key quants"),
        ("repositories: [{repo: a/b, quants: {Q4_0: 1048577 GiB}}]", "key quants"),
        (LAUGHS + "repositories: [{repo: a/b, note: *i}]", "key note: text (in quotes) is wanted, not …"),
        (LAUGHS + "repositories: [{repo: a/b, modes: [*i]}]", "key modes: …"),
        (LAUGHS + "repositories: [{repo: a/b, quants: {Q4_0: *i}}]", "key quants: 'Q4_0': …"),
        ("repositories: [{repo: a/b, quants: {Q4_0: 12}}]", "key quants"),
        ("repositories: [{repo: a/b, modes: [magic]}]", "key modes"),
        ("repositories: [{repo: a/b, format: onnx}]", "key format"),
        ("repositories: !!python/object/apply:os.getcwd []", "no YAML"),
        ("\xff\xfe", "not UTF-8"),
    ],
)
def test_a_catalogue_that_is_wrong(text: str, part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYCLOVER_CONFIG", str(tmp_path))
    (tmp_path / "catalogue.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        catalogue.entries()
    assert part in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name")
@pytest.mark.timeout(60)
def test_a_catalogue_that_is_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYCLOVER_CONFIG", str(tmp_path))
    for make in (Path.mkdir, os.mkfifo):
        make(tmp_path / "catalogue.yaml")
        with pytest.raises(UsageError, match=r"catalogue\.yaml is no file"):
            catalogue.entries()
        (tmp_path / "catalogue.yaml").rename(tmp_path / make.__name__)


@given(st.binary(max_size=200))
def test_any_catalogue_is_read_or_refused(data: bytes) -> None:
    try:
        found = catalogue.parse(data, "file")
    except UsageError:
        return
    assert all(entry.repo.count("/") == 1 for entry in found)


def test_the_rate_leaves_out_what_was_there() -> None:
    now = [100.0]
    states: list[DownloadProgress] = []
    meter = Meter(states.append, "download", 1000, done_bytes=400, clock=lambda: now[0])
    meter.begin("f")
    now[0] += 2.0
    meter.add(100)  # 100 bytes in 2 s: 50 a second, 500 left
    assert states[-1] == DownloadProgress("download", "f", 500, 1000, 50.0, 10.0)
    now[0] += 0.01
    meter.add(1)  # too soon to be told
    assert states[-1].done_bytes == 500
    meter.add(499)
    assert (states[-1].done_bytes, states[-1].left_s) == (1000, 0.0)


def test_a_hub_that_announces_absurd_sets_costs_no_memory() -> None:
    files = [HubFile(f"a{i}-00001-of-99999.gguf", 3) for i in range(200)]
    files += [HubFile("model-00001-of-99999.safetensors", 3), HubFile("C-Q4_0.gguf", 5)]
    tracemalloc.start()
    offers = offers_of("o/r", files)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [offer.quant for offer in offers if offer.quant != "safetensors"] == ["Q4_0"]
    assert peak < 4 << 20
