"""A feed gives the updates of each epoch, read ahead and in order; a stream is read by one process for all."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from kmgpu.data import channel
from kmgpu.data.ahead import DEPTH, Ahead, mapped
from kmgpu.data.feed import Wish
from kmgpu.data.order import OrderHash, content_hashes
from kmgpu.data.stream_feed import open_feed
from kmgpu.errors import UsageError
from kmgpu.worker.progress import Progress


def batch(number, rows=4):
    first = 10 * number
    return np.full((rows, 2), number, np.float32), np.arange(first, first + rows)


def batches(*sizes):
    """A function that gives a pass over batches of these sizes, and the list of what it has read."""
    read = []

    def passes():
        for number, rows in enumerate(sizes):
            read.append(number)
            yield batch(number, rows)

    return passes, read


def labels(updates):
    return [np.concatenate([part.y for part in update]).tolist() for update in updates]


def numbers(updates):
    return [int(update[0].x[0, 0]) for update in updates]


def epoch(feed, number=0, start=0):
    found = list(feed.epoch(number, start))
    feed.end_epoch()
    return found


def in_processes(processes, folder, make, work, **wish):
    """Return what ``work(feed)`` gives or raises in each of some processes, threads here."""
    results = [None] * processes

    def run(process):
        try:
            wanted = Wish("train", process, processes, folder=folder, **wish)
            results[process] = work(open_feed(make(process), wanted))
        except Exception as error:
            results[process] = error

    threads = [threading.Thread(target=run, args=(process,), daemon=True) for process in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_items_are_read_before_they_are_asked_for_and_no_more_than_some():
    read = []
    ahead = Ahead(read.append(number) or number for number in range(50))
    deadline = time.monotonic() + 10
    while len(read) < DEPTH + 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert next(ahead) == 0
    assert len(read) <= DEPTH + 2
    assert list(ahead) == list(range(1, 50))


def test_an_error_comes_in_its_place_and_again():
    def items():
        yield 1
        raise ValueError("bad row 5")

    ahead = Ahead(items())
    assert next(ahead) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="^bad row 5$"):
            next(ahead)


def test_closing_closes_what_is_read():
    closed = []

    def items():
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    ahead = Ahead(items())
    next(ahead)
    ahead.close()
    assert closed == [True]


def test_a_pool_keeps_the_order():
    with ThreadPoolExecutor(3) as pool:
        slow = [0.02, 0.0, 0.01, 0.0, 0.0]
        assert list(mapped(pool, lambda n: time.sleep(slow[n]) or n, range(5), 3)) == [0, 1, 2, 3, 4]


def test_rows_are_the_same_whatever_the_threads():
    class Rows:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            time.sleep(0.001 * (index % 3))
            return np.full(2, index), index

    wish = Wish("train", batch_size=4, seed=3, shuffle=True)
    one = open_feed(Rows(), wish)
    three = open_feed(Rows(), replace(wish, workers=3))
    assert one.first()[0].y.tolist() == three.first()[0].y.tolist()
    assert labels(epoch(one)) == labels(epoch(three)) and labels(epoch(one, 1, 1)) == labels(epoch(three, 1, 1))
    assert (one.rows, one.steps, one.sizes) == (10, 3, (4, 2))


def test_an_element_of_a_stream_is_a_global_batch():
    passes, read = batches(4, 4, 3)
    feed = open_feed(passes, Wish("train"))
    assert feed.first()[0].update_size == 4 == feed.batch_size and read == [0]
    first = epoch(feed)
    assert labels(first) == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22]]
    assert [update[0].step for update in first] == [0, 1, 2]
    assert numbers(epoch(feed, 1)) == [0, 1, 2]
    assert read == [0, 1, 2, 0, 1, 2]
    assert (feed.steps, feed.rows, feed.sizes) == (None, None, (4,))


def test_with_steps_an_epoch_goes_on_where_the_last_one_stopped():
    passes, _ = batches(4, 4, 4)
    feed = open_feed(passes, Wish("train", steps=2))
    feed.first()
    assert [numbers(epoch(feed, number)) for number in range(4)] == [[0, 1], [2, 0], [1, 2], [0, 1]]


def test_a_resumed_epoch_has_what_it_would_have_had():
    def fresh():
        feed = open_feed(batches(4, 4, 4)[0], Wish("train", steps=2))
        feed.first()
        return feed

    assert numbers(epoch(fresh(), 1, 1)) == [0] and numbers(epoch(fresh(), 2)) == [1, 2]
    whole = open_feed(batches(4, 4, 4)[0], Wish("train"))
    whole.first()
    assert numbers(epoch(whole, 2, 1)) == [1, 2]


def test_every_evaluation_has_the_same_rows_and_all_of_them_if_there_are_too_few():
    feed = open_feed(batches(4, 4, 4)[0], Wish("validation", steps=2, again=True))
    feed.first()
    assert [numbers(epoch(feed)) for _ in range(3)] == [[0, 1]] * 3
    short = open_feed(batches(4, 4)[0], Wish("validation", steps=5, again=True))
    short.first()
    assert [numbers(epoch(short)) for _ in range(2)] == [[0, 1]] * 2


def test_a_generator_goes_on():
    feed = open_feed(batches(4, 4, 4, 4, 4)[0](), Wish("train", steps=2))
    feed.first()
    assert [numbers(epoch(feed, number)) for number in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(UsageError, match="train: a generator ended after 5 batches, and more are needed; give the"):
        epoch(feed, 2)


def test_a_generator_may_fill_the_same_array_again():
    def passes():
        x = np.zeros((2, 1), np.float32)
        for number in range(3):
            x[:] = number
            yield x, x

    feed = open_feed(passes, Wish("train"))
    feed.first()
    assert labels(epoch(feed)) == [[[0], [0]], [[1], [1]], [[2], [2]]]


@pytest.mark.parametrize("processes", (2, 3, 5))
@pytest.mark.parametrize("accumulate", (1, 2))
def test_the_parts_of_all_processes_are_the_batch_and_it_is_read_once(tmp_path, processes, accumulate):
    passes, read = batches(7, 4, 1)

    def work(feed):
        feed.first()
        return [epoch(feed), epoch(feed, 1)]

    def order(results):
        hashes = []
        for process, epochs in enumerate(results):
            hashes.append(OrderHash())
            for step, update in enumerate(epochs[0] + epochs[1]):
                for part in update:
                    if part.counted(process):
                        hashes[-1].add(step, part.offset + part.positions, part.samples)
        return OrderHash.join([one.lanes for one in hashes])

    results = in_processes(processes, tmp_path, lambda process: passes, work, accumulate=accumulate)
    assert read == [0, 1, 2] * 2
    whole = open_feed(batches(7, 4, 1)[0], Wish("train", accumulate=accumulate))
    truth = work(whole)
    for number in (0, 1):
        for step, update in enumerate(truth[number]):
            for piece, part in enumerate(update):
                shares = [result[number][step][piece] for result in results]
                counted = [share for process, share in enumerate(shares) if share.counted(process)]
                assert np.concatenate([share.y for share in counted]).tolist() == part.y.tolist()
                assert {share.form for share in shares} == {part.form}
                assert all(share.indices.tolist() == part.indices.tolist() for share in shares)
    assert order(results) == order([truth])


def test_all_processes_may_leave_an_epoch_early(tmp_path):
    def work(feed):
        feed.first()
        ahead = feed.epoch(0)
        early = [numbers([next(ahead)])[0] for _ in range(2)]
        ahead.close()
        return early, numbers(epoch(feed, 1))

    big = [1 << 16] * 12  # more than a socket holds
    results = in_processes(3, tmp_path, lambda process: batches(*big)[0], work)
    assert results == [([0, 1], list(range(12)))] * 3


def test_an_error_of_the_stream_is_the_readers_and_the_others_lost_it(tmp_path):
    def passes():
        yield batch(0)
        raise ValueError("bad batch")

    def work(feed):
        feed.first()
        return epoch(feed)

    first, *others = in_processes(3, tmp_path, lambda process: passes, work)
    assert type(first) is ValueError and first.__notes__ == ["batch 1 of train"]
    assert [type(error) for error in others] == [channel.PeerLost] * 2
    assert all("ValueError: bad batch" in str(error) for error in others)


def test_a_note_says_that_every_process_holds_a_copy_of_large_arrays(tmp_path, monkeypatch):
    monkeypatch.setattr("kmgpu.data.feed.MOST_COPIED_BYTES", 64)
    large, small = np.ones((10, 4), np.float32), np.ones((10, 1), np.float32)
    np.save(tmp_path / "x.npy", large)
    mapped_rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    of = {"large": (large, None), "small": (small, None), "mapped": (mapped_rows, small)}
    notes = {name: open_feed(data, Wish("train", processes=2)).notes for name, data in of.items()}
    assert notes["small"] == notes["mapped"] == [] == open_feed(of["large"], Wish("train")).notes
    assert "each of 2 processes holds its own copy of the arrays of train, 0.0 GiB" in notes["large"][0]


def shuffled():
    """A function that gives 3 batches of 4, 4 and 2 rows, in an order drawn anew for each pass."""
    random = np.random.default_rng(0)

    def generate():
        order = random.permutation(10).astype(np.float32)
        for start in (0, 4, 8):
            yield order[start : start + 4], order[start : start + 4]

    return generate


@pytest.mark.parametrize("steps", [None, 2, 4, 7])
def test_a_stream_that_goes_on_in_an_epoch_goes_on_in_its_order(steps):
    def epochs(first: int = 0, start: int = 0) -> list[list[list[float]]]:
        feed = open_feed(shuffled(), Wish("train", steps=steps))
        feed.first()
        found = []
        for epoch in range(first, 4):
            updates = feed.epoch(epoch, start if epoch == first else 0)
            found.append([piece.y.tolist() for (piece,) in updates])
            feed.end_epoch()
        return found

    whole = epochs()
    for epoch in range(4):
        for start in range(len(whole[epoch]) + 1):
            assert epochs(epoch, start) == [whole[epoch][start:], *whole[epoch + 1 :]], (epoch, start)


def test_a_stream_that_goes_on_says_which_batch_it_has_skipped_last():
    progress, feed = Progress(), open_feed(shuffled(), Wish("train"))
    feed.first()
    for update in feed.epoch(0):
        progress.last = update
        again = open_feed(shuffled(), Wish("train"))
        again.first()
        next(again.epoch(0, update[0].step + 1), None)
        assert again.skipped == OrderHash.join(progress.last_update(0).lanes)


def test_the_order_of_a_stream_is_told_by_its_contents():
    rows = np.arange(4000, dtype=np.float32).reshape(4, 1000)
    hashes = content_hashes([rows, np.arange(4)])
    assert len(set(hashes.tolist())) == 4
    assert content_hashes([rows[::-1], np.arange(4)[::-1]]).tolist() == hashes[::-1].tolist()
    changed = rows.copy()
    changed[2, 999] += 1
    assert (content_hashes([changed, np.arange(4)]) != hashes).tolist() == [False, False, True, False]
    assert content_hashes([np.zeros((2, 3), np.uint8)]).shape == (2,)


REFUSED = {
    "a generator": (lambda: batches(4)[0](), {}, "train is a generator, whose end cannot be known; give"),
    "a batch size": (lambda: batches(4)[0], {"given": True}, "--batch-size is 32, and train is the function passes"),
    "empty": (lambda: batches()[0], {}, "train is the function passes that gave no batch; at least one"),
    "a number": (lambda: lambda: iter([3]), {}, "train: batch 0: x is the single number 3"),
    "rows apart": (lambda: lambda: iter([(np.ones(3), np.ones(2))]), {}, "train: batch 0: x has 3 rows and y has 2"),
    "four": (lambda: lambda: iter([(1, 2, 3, 4)]), {}, "train: batch 0 is a tuple of 4; it must be"),
    "words": (lambda: lambda: iter([(np.array(["a"]), np.ones(1))]), {}, "train: batch 0: x has dtype <U1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_stream_that_cannot_be_used_is_refused_in_one_sentence(case):
    make, wish, words = REFUSED[case]
    with pytest.raises(UsageError) as refusal:
        open_feed(make(), Wish("train", **wish)).first()
    assert str(refusal.value).startswith(words) and "\n" not in str(refusal.value)


def test_a_batch_of_another_structure_is_named():
    feed = open_feed(lambda: iter([batch(0), (*batch(1), np.ones(4))]), Wish("train"))
    feed.first()
    with pytest.raises(UsageError, match="train: batch 1 is .* and the first was .*; all must be alike"):
        epoch(feed)
