"""What a check of one step on shares against the whole could overlook, and does not (tests/recipes/blind_spots.py)."""

from __future__ import annotations

import cells
import measured
import pytest
from measured import EXACT, GATHERED, WHOLE

pytestmark = pytest.mark.workers

SHARING = ("torch", "tensorflow")  # JAX computes one program over all rows
KINDS = {
    "weakly": WHOLE,
    "equal rows": WHOLE,
    "only in a metric": WHOLE,
    "no axis but the rows": GATHERED,
    "over the rows": GATHERED,
    "running": WHOLE,
    "counts rows": WHOLE,
    "annealed": WHOLE,
    "clipped": WHOLE,
    "made for a batch": WHOLE,
}


def name(kind: str) -> str:
    return f"blind-{kind.replace(' ', '-')}"


for kind in (*KINDS, "later", "nothing"):
    cells.add(name(kind), "blind_spots", (1,), backends=("jax",), settings={"kind": kind})
    cells.add(name(kind), "blind_spots", (2,), backends=SHARING, settings={"kind": kind})
in_pieces = {"kind": "equal rows", "accumulate": 2}
cells.add("blind-small-pieces", "blind_spots", (1,), backends=("jax",), settings=in_pieces)
cells.add("blind-small-pieces", "blind_spots", (3,), backends=SHARING, settings=in_pieces)
cells.add(
    "blind-rank-accumulated", "blind_spots", (1, 2), settings={"kind": "no axis but the rows", "accumulate": 2}
)

sharing = pytest.mark.parametrize("backend", SHARING)


def assert_same(run: cells.Ran, reference: cells.Ran) -> None:
    found = measured.errors(run, reference)
    worst = max(found, key=lambda name: found[name])
    assert found[worst] < 1e-5, f"{worst} is off by {found[worst]:.2g}"


@sharing
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_matter_to_each_other_are_found_however_it_hides(ran, backend, kind):
    run = ran(backend, name(kind), 2)
    assert_same(run, ran("jax", name(kind), 1))
    assert measured.how(run) == KINDS[kind]


@sharing
def test_what_begins_in_the_middle_of_a_run_is_found_there_and_said(ran, backend):
    run = ran(backend, name("later"), 2)
    (note,) = run.outcome["notes"]
    assert note.startswith("from step 16 on each device computes the whole batch, which is exact but no faster")
    assert "(steps 0 to 15 may have been off by as much): the " in note and "metric" not in note


@sharing
def test_where_there_is_nothing_to_find_a_batch_of_a_new_size_finds_nothing(ran, backend):
    assert ran(backend, name("nothing"), 2).outcome["notes"] == []


@sharing
def test_pieces_with_fewer_rows_than_devices_do_not_keep_the_others_from_being_checked(ran, backend):
    run = ran(backend, "blind-small-pieces", 3)
    assert_same(run, ran("jax", "blind-small-pieces", 1))
    assert measured.how(run) == WHOLE
    assert any(note.startswith("an update in 2 pieces is not the update in one") for note in run.outcome["notes"])


@pytest.mark.parametrize("devices", (1, 2))
@pytest.mark.parametrize("backend", ("torch", "tensorflow", "jax"))
def test_outputs_without_an_axis_but_the_rows_accumulate_to_the_loss_of_the_whole_batch(ran, backend, devices):
    run, reference = ran(backend, "blind-rank-accumulated", devices), ran("jax", name("no axis but the rows"), 1)
    weights = {key: error for key, error in measured.errors(run, reference).items() if key in reference.weights}
    assert max(weights.values()) < 1e-5, weights
    assert measured.how(ran(backend, "blind-rank-accumulated", 1)) == EXACT
