"""Data of every form a recipe may give comes out as rows by index; what cannot is refused in one sentence."""

import threading

import numpy as np
import pytest

from kmgpu.data.share import share
from kmgpu.data.source import as_source
from kmgpu.errors import KmgpuError, RunFailed, UsageError

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.arange(6, dtype=np.int32)


class Logged:
    """A random-access object that remembers which rows were asked for."""

    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        assert type(index) is int
        self.asked.append(index)
        return self.rows[index]


def test_rows_of_arrays_come_in_the_order_asked_for_with_their_dtype():
    source = as_source((X, Y), "train")
    x, y, sample_weight = source.take(np.array([4, 0]))
    assert len(source) == 6
    assert x.tolist() == [[8, 9], [0, 1]] and x.dtype == np.float32
    assert y.tolist() == [4, 0] and y.dtype == np.int32
    assert sample_weight is None


def test_sample_weights_are_the_third():
    assert as_source((X, Y, Y / 2), "train").take(np.array([3]))[2].tolist() == [1.5]


def test_x_alone_has_no_y():
    x, y, _ = as_source(X, "train").take(np.array([1]))
    assert x.tolist() == [[2, 3]] and y is None


def test_several_inputs_and_outputs_keep_their_structure():
    source = as_source(({"a": X, "b": [Y, X]}, (Y, {"c": X})), "train")
    x, y, _ = source.take(np.array([5]))
    assert x["a"].tolist() == [[10, 11]] and x["b"][0].tolist() == [5] and x["b"][1].tolist() == [[10, 11]]
    assert isinstance(y, tuple) and y[1]["c"].tolist() == [[10, 11]]


def test_a_list_of_numbers_is_one_array_and_a_list_of_arrays_is_several():
    x, y, _ = as_source(([[0, 1], (2, 3)], [0, 1]), "train").take(np.array([1]))
    assert x.tolist() == [[2, 3]] and y.tolist() == [1]
    x, _, _ = as_source(([X, Y], Y), "train").take(np.array([1]))
    assert isinstance(x, list) and x[0].tolist() == [[2, 3]]


def test_a_memory_map_stays_one_until_rows_are_taken(tmp_path):
    np.save(tmp_path / "x.npy", X)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = as_source((x, Y), "train")
    assert source.fields[0] is x
    rows = source.take(np.array([2, 1]))[0]
    assert type(rows) is np.ndarray and rows.flags.writeable and rows.tolist() == X[[2, 1]].tolist()


def test_rows_are_contiguous_and_in_native_byte_order():
    x, _, _ = as_source((np.asfortranarray(X).astype(">f4"), Y), "train").take(np.arange(3))
    assert x.flags.c_contiguous and x.dtype == np.dtype("=f4") and x.tolist() == X[:3].tolist()


def test_a_random_access_object_is_asked_for_each_row_once_and_not_before():
    data = Logged([({"a": X[row]}, float(row), 2) for row in range(6)])
    source = as_source(data, "train")
    assert len(source) == 6 and data.asked == []
    x, y, sample_weight = source.take(np.array([5, 2]))
    assert data.asked == [5, 2]
    assert x["a"].tolist() == [[10, 11], [4, 5]]
    assert y.tolist() == [5, 2] and y.shape == (2,) and sample_weight.tolist() == [2, 2]


def test_what_reading_a_row_raises_comes_as_it_is():
    class Bad(Logged):
        def __getitem__(self, index):
            raise ValueError("bad row 5")

    with pytest.raises(ValueError, match="^bad row 5") as raised:
        as_source(Bad([1]), "train").take(np.array([0]))
    assert str(raised.value) == "bad row 5" and raised.value.__notes__ == ["row 0 of train"]


class Endless:
    def __getitem__(self, index):
        return X[0], 0


REFUSED = {
    "unequal lengths": ((np.zeros((1797, 2)), np.zeros(1796)), "train: x has 1,797 rows and y has 1,796; all arrays"),
    "unequal input": (({"a": X, "b": X[:5]}, Y), "train: x['a'] has 6 rows and x['b'] has 5;"),
    "unequal weights": ((X, Y, Y[:1]), "x has 6 rows and sample_weight has 1"),
    "many arrays for one": ((list(X), Y), "train: x[0] has 2 rows and y has 6"),
    "empty": ((X[:0], Y[:0]), "train: x has no rows"),
    "empty object": (Logged([]), "train: the Logged has no rows"),
    "no array": (({}, Y), "train: x holds no array"),
    "no x": ((None, Y), "train: x holds no array"),
    "a number": ((X, np.float32(3)), "train: y is the single number 3.0"),
    "one in a tuple": ((X,), "train is a tuple of 1; give a tuple (x, y)"),
    "four in a tuple": ((X, Y, Y, Y), "train is a tuple of 4"),
    "a list for a tuple": ([X, Y], "train is a list, and which of it is y"),
    "objects": ((np.array([None, 1], object), [0, 1]), "train: x has dtype object"),
    "words": ((["a", "b"], [0, 1]), "train: x has dtype <U1"),
    "ragged": (([[1, 2], [3]], [0, 1]), "train: x, of type list, cannot be read as an array of numbers"),
    "generator": ((row for row in [(X, Y)]), "train is of type generator, which is no data; give a tuple (x, y)"),
    "generator in a tuple": (((row for row in X), Y), "train: x has dtype object"),
    "no length": (Endless(), "train: the Endless has no length"),
    "a function": (lambda: (X, Y), "train is a function"),
    "None": (None, "train is of type NoneType"),
    "a word": ("digits", "train is of type str"),
    "number": (5, "train is of type int, which is no data; give a tuple (x, y)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_data_is_refused_in_one_sentence(case):
    data, words = REFUSED[case]
    with pytest.raises(UsageError) as refusal:
        as_source(data, "train")
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


REFUSED_ROWS = {
    "another shape": ([(X[0], 0), (Y, 1)], "train: row 1 is ((6,), (), None) and row 0 is ((2,), (), None)"),
    "another structure": ([(X[0], 0), (X[1], 0, 1)], "train: row 1 is ((2,), (), ()) and row 0 is ((2,), (), None)"),
    "a list": ([[X[0], 0]] * 2, "train: row 0 is a list of 2; it must be a tuple"),
    "four": ([(0, 0, 0, 0)] * 2, "train: row 0 is a tuple of 4"),
    "a word": ([(X[0], "cat")] * 2, "train: y has dtype <U3"),
}


@pytest.mark.parametrize("case", REFUSED_ROWS)
def test_a_row_that_is_not_like_the_others_is_named(case):
    rows, words = REFUSED_ROWS[case]
    with pytest.raises(UsageError) as refusal:
        as_source(Logged(rows), "train").take(np.arange(2))
    assert words in str(refusal.value)


def in_processes(load, directory, processes=3):
    """Return what ``share`` gives or raises in each of some processes, threads here; process 0 is the last to start."""
    results = [None] * processes

    def work(process):
        try:
            results[process] = share(load, directory, process, "train")
        except Exception as error:
            results[process] = error

    threads = [threading.Thread(target=work, args=(process,), daemon=True) for process in reversed(range(processes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return results


def test_shared_arrays_are_made_once_and_mapped_by_all(tmp_path):
    calls = []
    results = in_processes(lambda: calls.append(1) or ({"a": X, 2: [Y, X]}, [0, 1, 2, 3, 4, 5]), tmp_path / "train")
    assert calls == [1]
    for x, y, sample_weight in results:
        assert isinstance(x["a"], np.memmap) and not x["a"].flags.writeable
        assert x["a"].tolist() == X.tolist() and x[2][0].tolist() == Y.tolist() and x[2][0].dtype == np.int32
        assert y.tolist() == [0, 1, 2, 3, 4, 5] and sample_weight is None
        assert len(as_source((x, y, sample_weight), "train")) == 6


def test_a_random_access_object_is_made_in_every_process(tmp_path):
    results = in_processes(lambda: Logged([(0, 0)]), tmp_path)
    assert len({id(result) for result in results}) == 3
    assert all(isinstance(result, Logged) for result in results)


def test_memory_maps_are_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", X)
    results = in_processes(lambda: (np.load(tmp_path / "x.npy", mmap_mode="r"), Y), tmp_path / "shared")
    assert all(isinstance(x, np.memmap) for x, _ in results)
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["manifest.json"]


def test_one_process_writes_nothing():
    assert share(lambda: 5, None, 0) == 5


def test_what_is_no_function_is_returned_as_it_is(tmp_path):
    data = (X, Y)
    assert share(data, tmp_path, 1) is data


def test_an_error_of_process_0_reaches_all(tmp_path):
    def load():
        raise OSError("disk on fire")

    first, *others = in_processes(load, tmp_path)
    assert type(first) is OSError
    for error in others:
        assert type(error) is RunFailed
        assert str(error) == "process 0 failed while it loaded the data: OSError: disk on fire"


def test_data_that_is_refused_is_refused_by_all_alike(tmp_path):
    results = in_processes(lambda: (X, Y[:5]), tmp_path)
    assert [type(error) for error in results] == [UsageError] * 3
    assert all("train: x has 6 rows and y has 5" in str(error) for error in results)


def test_a_full_disk_is_said_so(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    results = in_processes(lambda: (X, Y), tmp_path)
    assert [type(error) for error in results] == [KmgpuError] * 3
    assert "train: no room for 48 bytes in" in str(results[0])
