"""Text, chunks, the file of logits and the journal of scores: bytes made by hand, cut anywhere."""

from __future__ import annotations

import shutil
import struct
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyclover.errors import FileError, InvalidFileError, UsageError
from pyclover.tuning.quality.chunks import Chunks, cut, read_text
from pyclover.tuning.quality.journal import Journal
from pyclover.tuning.quality.logits_file import LogitsFile, LogitsWriter, facts_path
from pyclover.tuning.quality.rows import SCORE

N_CTX, N_VOCAB, N_CHUNKS = 8, 5, 3
TOKENS = [[i % N_VOCAB for i in range(k, k + N_CTX)] for k in range(N_CHUNKS)]
ROWS = [np.arange(30, dtype="<u2").reshape(3, 10) + 100 * k for k in range(N_CHUNKS)]  # 3 = 8 - 1 - 4 rows, 6 + 4 words


def by_hand() -> bytes:
    """The whole file, as llama-perplexity lays it out."""
    head = b"_logits_" + struct.pack("<Iii", N_CTX, N_VOCAB, N_CHUNKS)
    head += b"".join(struct.pack("<8i", *tokens) for tokens in TOKENS)
    return head + b"".join(struct.pack("<30H", *(100 * k + i for i in range(30))) for k in range(N_CHUNKS))


def writer(path: Path, facts: dict[str, Any] | None = None, **options: Any) -> LogitsWriter:
    chunks = Chunks(np.array(TOKENS, np.int32))
    return LogitsWriter(path, chunks, N_VOCAB, {"made of": "a"} if facts is None else facts, **options)


def test_the_chunks_of_a_text() -> None:
    chunks = cut(list(range(100, 126)), 8, -1)  # 2 tokens are left over
    assert (chunks.n_chunks, chunks.n_ctx, chunks.first, chunks.n_scored) == (3, 8, 4, 3)
    assert chunks.read(1, None) == [108, 109, 110, 111, 112, 113, 114]
    assert chunks.read(1, 1) == [1, 109, 110, 111, 112, 113, 114]
    assert chunks.targets(1).tolist() == [113, 114, 115]  # predicted by positions 4, 5, 6
    assert cut(list(range(26)), 8, 2).n_chunks == 2
    odd = cut(list(range(20)), 5, 99)
    assert (odd.n_chunks, odd.first, odd.targets(0).tolist()) == (4, 2, [3, 4])


def test_a_text_that_is_too_short() -> None:
    with pytest.raises(UsageError, match="has 15 tokens, and chunks of 8 tokens need at least 16"):
        cut(list(range(15)), 8, -1)


def test_reading_a_text(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("ä\r\n\n\n".encode())
    assert read_text(path) == "ä\r\n\n"
    assert read_text("x\n") == "x\n"  # the text itself stays as it is
    path.write_bytes(b"ab\xff")
    with pytest.raises(UsageError, match=r"is not UTF-8 text .* at byte 2"):
        read_text(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_text(tmp_path / "none")


def test_written_as_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "l.kld"
    w = writer(path)
    assert w.n_bytes == len(by_hand())
    for rows in ROWS:
        assert not path.exists()
        w.append(rows)
    w.finish()
    assert path.read_bytes() == by_hand()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["l.kld", "l.kld.json"]


def test_read_from_bytes_made_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "l.kld"
    path.write_bytes(by_hand())
    file = LogitsFile(path)
    assert (file.n_vocab, file.chunks.tokens.tolist(), file.n_bytes) == (N_VOCAB, TOKENS, len(by_hand()))
    for k, rows in enumerate(ROWS):
        assert file.rows(k).tolist() == rows.tolist()


@pytest.mark.parametrize("n", range(0, len(by_hand()), 7))
def test_cut_short_anywhere(tmp_path: Path, n: int) -> None:
    path = tmp_path / "l.kld"
    path.write_bytes(by_hand()[:n])
    with pytest.raises(InvalidFileError, match=r"is no file of logits|is damaged or not complete"):
        LogitsFile(path)


@pytest.mark.parametrize(
    "head", [(0, 5, 3), (2**31, 5, 3), (8, -5, 3), (8, 5, -3), (8, 5, 2**31 - 1), (8, 2**31 - 1, 3)]
)
def test_impossible_numbers(tmp_path: Path, head: tuple[int, int, int]) -> None:
    path = tmp_path / "l.kld"
    path.write_bytes(b"_logits_" + struct.pack("<Iii", *head) + by_hand()[20:])
    with pytest.raises(InvalidFileError, match="is damaged or not complete"):
        LogitsFile(path)


def test_tokens_beyond_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "l.kld"
    path.write_bytes(by_hand()[:20] + struct.pack("<i", 5) + by_hand()[24:])
    with pytest.raises(InvalidFileError, match="tokens beyond its vocabulary"):
        LogitsFile(path)


@pytest.mark.parametrize("n", [0, 5, 50, 116, 117, 175, 176, 177, 230, 236, 296])
def test_goes_on_behind_the_last_whole_chunk(tmp_path: Path, n: int) -> None:
    """The head has 116 bytes, a chunk 60."""
    path = tmp_path / "l.kld"
    writer(path).close()
    (tmp_path / "l.kld.part").write_bytes(by_hand()[:n])
    w = writer(path)
    assert w.n_done == max(0, n - 116) // 60
    for rows in ROWS[w.n_done :]:
        w.append(rows)
    w.finish()
    assert path.read_bytes() == by_hand()


def test_a_part_made_of_something_else_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "l.kld"
    first = writer(path)
    first.append(ROWS[0])
    first.close()
    assert writer(path, {"made of": "b"}).n_done == 0
    again = writer(path, {"made of": "b"})
    again.append(ROWS[1])
    again.close()
    facts_path(path).unlink()
    assert writer(path, {"made of": "b"}).n_done == 0
    third = writer(path, {"made of": "b"})
    third.append(ROWS[0])
    third.close()
    assert writer(path, {"made of": "b"}, resume=False).n_done == 0


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, (64 << 20) + 130))
    with pytest.raises(FileError, match=r"2 chunks would fit: give fewer with n_chunks \(--chunks\)"):
        writer(tmp_path / "l.kld")
    assert list(tmp_path.iterdir()) == []


def some_scores(k: int) -> Any:
    out = np.zeros(3, dtype=SCORE)
    out["nll"], out["kld"], out["same_top"] = k, [0.1, 0.2, 0.3], 1
    return out


def test_a_journal_goes_on_after_any_cut(tmp_path: Path) -> None:
    path = tmp_path / "s.scores"
    whole = Journal(path, 3)
    assert whole.finished() is None
    assert whole.begin(4, resume=True) == []
    for k in range(4):
        whole.append(some_scores(k))
    assert not path.exists()
    whole.finish()
    data = path.read_bytes()
    assert len(data) == 4 * (3 * SCORE.itemsize + 4)
    for n in (0, 1, len(data) // 4, len(data) // 2 - 1, len(data) // 2, len(data) - 1, len(data)):
        path.unlink()
        (tmp_path / "s.scores.part").write_bytes(data[:n])
        journal = Journal(path, 3)
        assert journal.finished() is None
        done = journal.begin(4, resume=True)
        assert len(done) == n * 4 // len(data)
        assert [scores.tolist() for scores in done] == [some_scores(k).tolist() for k in range(len(done))]
        for k in range(len(done), 4):
            journal.append(some_scores(k))
        journal.finish()
        assert path.read_bytes() == data


def test_a_damaged_record_and_what_follows_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "s.scores"
    journal = Journal(path, 3)
    journal.begin(3, resume=True)
    for k in range(3):
        journal.append(some_scores(k))
    journal.finish()
    data = bytearray(path.read_bytes())
    data[len(data) // 3 + 5] ^= 1
    path.write_bytes(data)
    assert journal.finished() is None
    (tmp_path / "s.scores.part").write_bytes(data)
    assert len(Journal(path, 3).begin(3, resume=True)) == 1
    assert Journal(path, 3).begin(3, resume=False) == []
