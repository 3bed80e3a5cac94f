"""The watchdog of `serve`: a server that answers may hang all the same, and one that is silent may be at work."""

from __future__ import annotations

from typing import Any

from pyclover.serve.watchdog import Watchdog


def slot(n_decoded: int, *, busy: bool = True, n_read: int = 10, task: int = 1, number: int = 0) -> dict[str, Any]:
    """As llama.cpp's /slots describes it, as far as it matters."""
    return {
        "id": number, "id_task": task, "is_processing": busy, "n_prompt_tokens_processed": n_read,
        "next_token": [{"n_decoded": n_decoded}],
    }  # fmt: skip


def first_alarm(dog: Watchdog, seen: list[tuple[list[dict[str, Any]] | None, float]], step_s: float = 2) -> int | None:
    """Seconds until it says something; `seen` are slots and processor time, look by look."""
    for i, (slots, cpu_s) in enumerate(seen):
        if dog.look(1000 + i * step_s, slots, cpu_s):
            return int(i * step_s)
    return None


def test_a_slot_that_drafts_and_accepts_nothing() -> None:
    """Computes hard, answers at once, and gives no token: seen with drafts at temperature 0."""
    seen: list[tuple[list[dict[str, Any]] | None, float]] = [([slot(7)], 2.0 * i) for i in range(100)]
    assert first_alarm(Watchdog(60), seen) == 60


def test_what_is_no_fault() -> None:
    slow = [([slot(i // 20)], 0.1 * i) for i in range(400)]  # a token in 40 s
    reading = [([slot(0, n_read=i // 20)], 2.0 * i) for i in range(400)]
    idle = [([slot(7, busy=False)], 0.0) for _ in range(400)]
    # it waits for the other's long prompt
    one_of_two = [([slot(0, n_read=0), slot(0, task=2, n_read=i, number=1)], 2.0 * i) for i in range(900)]
    new_tasks = [([slot(1, task=i // 20)], 2.0 * i) for i in range(400)]
    one_block = [([{**slot(7), "diffusion_passes": i // 20}], 2.0 * i) for i in range(400)]
    for seen in (slow, reading, idle, one_of_two, new_tasks, one_block):
        assert first_alarm(Watchdog(60), list(seen)) is None


def test_one_slot_that_hangs_while_another_gets_on() -> None:
    """Later than a server that hangs as a whole: to start it anew cuts off the other, too."""
    dog = Watchdog(60)
    for i in range(300):
        assert dog.look(1000 + 2 * i, [slot(7), slot(i, task=2, number=1)], 2.0 * i) == ""
    assert dog.look(1600, [slot(7), slot(300, task=2, number=1)], 600.0) == (
        "slot 0 has made no token for 600 s, while others did"
    )
    new_tasks = [([slot(1, task=i // 100), slot(i, task=1000, number=1)], 2.0 * i) for i in range(900)]
    assert first_alarm(Watchdog(60), list(new_tasks)) is None


def test_busy_after_a_long_rest() -> None:
    dog = Watchdog(60)
    assert first_alarm(dog, [([slot(7, busy=False)], 0.0)] * 300) is None
    assert dog.look(2000, [slot(7)], 1.0) == ""


def test_a_long_batch_is_silent_and_at_work() -> None:
    seen: list[tuple[list[dict[str, Any]] | None, float]] = [([slot(0)], 0.0)]
    seen += [(None, 1.9 * i) for i in range(1, 250)]
    assert first_alarm(Watchdog(60), seen) is None
    seen += [(None, 1.9 * i) for i in range(250, 400)]
    assert first_alarm(Watchdog(60), seen) == 600


def test_silent_and_idle_is_dead() -> None:
    seen: list[tuple[list[dict[str, Any]] | None, float]] = [([slot(0)], 0.0)]
    seen += [(None, 5.0 + i) for i in range(5)]
    seen += [(None, 9.0)] * 100
    assert first_alarm(Watchdog(60), seen) in (68, 70)


def test_off() -> None:
    assert first_alarm(Watchdog(0), [(None, 0.0)] * 1000) is None
