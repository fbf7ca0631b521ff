"""Batches hold every sample once at any device count, and the shares of all processes are the global batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmgpu.data.loader import batches, class_weights, split
from kmgpu.data.order import epoch_order
from kmgpu.data.source import as_source
from kmgpu.errors import UsageError


def source_of(rows):
    return as_source((np.arange(rows) * 10, np.arange(rows)), "train")


@given(st.integers(1, 200), st.integers(1, 20))
def test_shares_are_contiguous_and_near_equal(size, parts):
    shares = split(size, parts)
    if size < parts:
        assert shares is None
        return
    assert np.concatenate([np.arange(size)[share] for share in shares]).tolist() == list(range(size))
    sizes = [share.stop - share.start for share in shares]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 5), st.booleans())
def test_shares_joined_are_the_global_batch(rows, batch_size, processes, shuffle):
    def load(part):
        return list(
            batches(source_of(rows), batch_size=batch_size, seed=3, epoch=2, shuffle=shuffle, part=part)
        )

    whole = load((0, 1))
    assert np.concatenate([batch.indices for batch in whole]).tolist() == epoch_order(rows, 3, 2, shuffle).tolist()
    for batch, *shares in zip(whole, *(load((process, processes)) for process in range(processes)), strict=True):
        assert all(share.indices.tolist() == batch.indices.tolist() for share in shares)
        counted = [share for process, share in enumerate(shares) if share.counted(process)]
        for field in ("x", "y", "positions"):
            joined = np.concatenate([getattr(share, field) for share in counted])
            assert joined.tolist() == getattr(batch, field).tolist()
        assert batch.x.tolist() == (batch.indices * 10).tolist()
        assert sum(share.rows for share in counted) == batch.size == batch.rows


def test_a_batch_of_fewer_rows_than_processes_is_computed_by_each():
    shares = [
        next(batches(source_of(2), batch_size=4, seed=0, epoch=0, shuffle=False, part=(process, 3)))
        for process in range(3)
    ]
    assert [(share.first, share.rows, share.size) for share in shares] == [(0, 2, 2)] * 3
    assert [share.counted(process) for process, share in enumerate(shares)] == [True, False, False]


def test_the_last_batch_may_be_short_and_steps_limit_their_number():
    def sizes(steps):
        loaded = batches(source_of(10), batch_size=4, seed=0, epoch=0, shuffle=True, steps=steps)
        return [(batch.step, batch.size) for batch in loaded]

    assert sizes(None) == sizes(9) == [(0, 4), (1, 4), (2, 2)]
    assert sizes(2) == [(0, 4), (1, 4)]


def test_each_row_of_a_random_access_object_is_read_once_over_all_processes():
    read = []

    class Data:
        def __len__(self):
            return 11

        def __getitem__(self, index):
            read.append(index)
            return np.zeros(2), index % 3

    for process in range(2):
        for batch in batches(
            as_source(Data(), "train"), batch_size=4, seed=1, epoch=0, shuffle=True, part=(process, 2),
            class_weight={1: 2.0},
        ):  # fmt: skip
            assert batch.sample_weight.tolist() == [2.0 if index % 3 == 1 else 1.0 for index in batch.y]
    assert sorted(read) == list(range(11))


@pytest.mark.parametrize(
    "labels",
    [np.array([0, 2, 1, 2]), np.array([[0], [2], [1], [2]]), np.array([0.1, 1.9, 1, 2]), np.eye(3)[[0, 2, 1, 2]]],
    ids=["integers", "a column", "floats are rounded", "one-hot"],
)
def test_class_weights_follow_the_labels_and_unnamed_labels_weigh_one(labels):
    weights = class_weights(labels, None, {0: 3, 2: 0.5})
    assert weights.tolist() == [3, 0.5, 1, 0.5] and weights.dtype == np.float32


@pytest.mark.parametrize(
    "y, sample_weight, class_weight, words",
    [
        (np.zeros(3), np.ones(3), {0: 1}, "both class_weight and sample_weight"),
        ([np.zeros(3), np.zeros(3)], None, {0: 1}, "several outputs (y is a list)"),
        ({"a": np.zeros(3)}, None, {0: 1}, "several outputs (y is a dict)"),
        (None, None, {0: 1}, "no y"),
        (np.zeros((3, 4, 4)), None, {0: 1}, "y has shape (3, 4, 4)"),
        (np.zeros(3), None, [1, 2], "class_weight is [1, 2]; it must be a dict"),
    ],
)
def test_class_weights_that_keras_refuses_are_refused(y, sample_weight, class_weight, words):
    with pytest.raises(UsageError) as refusal:
        class_weights(y, sample_weight, class_weight)
    assert words in str(refusal.value)
