"""When steps on shares are compared with the whole again in the course of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kmgpu.worker.rechecks import Rechecks


def compared(
    updates: int, resumed: bool = False, new_sizes: tuple[int, ...] = (), changes: tuple[int, ...] = (), why: int = -1
) -> tuple[list[int], list[str]]:
    """Return the updates that are compared, and the notes; there is something to find from the update ``why`` on."""
    looked: list[int] = []
    notes: list[str] = []
    now = 0

    def recheck(adapter: Any, update: Any) -> str | None:
        looked.append(now)
        return "it differs" if 0 <= why <= now else None

    adapter: Any = SimpleNamespace(devices=2, tools=SimpleNamespace(recheck=recheck))
    rechecks = Rechecks(lambda event, text: notes.append(text), resumed)
    for now in range(updates):
        changed = sum(change <= now for change in changes)
        rechecks.before(adapter, (), now, new_size=now == 0 or now in new_sizes, changes=changed)
    return looked, notes


def test_comparisons_become_rarer():
    assert compared(1500) == ([16, 64, 256, 1024], [])


def test_a_new_size_and_a_change_by_a_callback_are_compared_at_once():
    assert compared(16, new_sizes=(3,), changes=(5, 9))[0] == [3, 5, 9]


def test_a_run_that_goes_on_is_compared_at_its_first_update():
    assert compared(20, resumed=True)[0] == [0, 16]


def test_a_note_says_since_when_results_may_have_been_off():
    (note,) = compared(100, why=40)[1]
    assert note.startswith("from step 64 on each device computes the whole batch")
    assert "(steps 16 to 63 may have been off by as much): it differs" in note
