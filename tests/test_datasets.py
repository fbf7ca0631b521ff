"""The shipped data sets have the shapes and ranges they promise, and say what to do where a file is missing."""

import functools
import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kmgpu.data import datasets
from kmgpu.errors import MissingEnvironment, UsageError


def test_digits_are_images_in_0_to_1_with_fixed_splits():
    pytest.importorskip("sklearn")
    x, y = datasets.digits("train")
    x_test, y_test = datasets.digits("test")
    assert x.shape == (1437, 8, 8, 1) and x_test.shape == (360, 8, 8, 1)
    assert x.dtype == np.float32 and y.dtype == np.int32 and y.shape == (1437,)
    assert x.min() == 0 and x.max() == 1
    assert y[:8].tolist() == [1, 2, 3, 4, 6, 7, 8, 9] and y_test[:8].tolist() == [0, 5, 0, 5, 0, 5, 0, 5]
    assert np.bincount(y_test).min() >= 25, "a digit is hardly in the held-out images"


def test_digits_can_be_changed_without_changing_them_for_others():
    pytest.importorskip("sklearn")
    datasets.digits("train")[0][:] = 5
    assert datasets.digits("train")[0].max() == 1


def test_digits_are_read_without_importing_scikit_learn():
    pytest.importorskip("sklearn")
    code = (
        "import sys; from kmgpu.data.datasets import digits; digits('train'); "
        "print([name for name in ('sklearn', 'scipy', 'pandas', 'keras') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(datasets, "_digits_table", functools.cache(datasets._digits_table.__wrapped__))
    with pytest.raises(MissingEnvironment, match="pip install scikit-learn"):
        datasets.digits("train")


def test_weekly_co2_has_no_gaps_and_rises():
    series = datasets.co2()
    assert series.shape == (2284,) and series.dtype == np.float32 and not np.isnan(series).any()
    assert series[0] == pytest.approx(316.1) and series[-1] == pytest.approx(371.5)
    assert series[6] == pytest.approx((316.9 + 317.5) / 2), "a week without a measurement"


def test_affairs_are_columns_and_a_target():
    table, y = datasets.affairs("train")
    rest, _ = datasets.affairs("test")
    assert len(y) == 5092 and len(rest["age"]) == 1274 and 0.3 < y.mean() < 0.35 and y.dtype == np.int32
    assert sorted(table) == [
        "age", "children", "educ", "occupation", "occupation_husb", "rate_marriage", "religious", "yrs_married",
    ]  # fmt: skip
    assert all(values.dtype == np.float32 and len(values) == len(y) for values in table.values())


@pytest.mark.parametrize("read", (datasets.co2, lambda: datasets.affairs("train")))
def test_data_of_statsmodels_say_what_to_install(monkeypatch, read):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingEnvironment, match="part of statsmodels, .* run `pip install statsmodels`"):
        read()


def test_images_of_keras_are_scaled_and_given_a_channel(monkeypatch):
    train, test = (np.full((3, 28, 28), 255, np.uint8), np.array([1, 2, 3], np.uint8)), None
    monkeypatch.setitem(sys.modules, "keras", keras_with("fashion_mnist", lambda: (train, test)))
    x, y = datasets.keras_images("fashion_mnist", "train")()
    assert x.shape == (3, 28, 28, 1) and x.dtype == np.float32 and x.max() == 1
    assert y.tolist() == [1, 2, 3] and y.dtype == np.int32


def test_labels_of_cifar_are_one_number_each(monkeypatch):
    train = np.zeros((2, 32, 32, 3), np.uint8), np.array([[4], [6]], np.uint8)
    monkeypatch.setitem(sys.modules, "keras", keras_with("cifar10", lambda: (train, train)))
    x, y = datasets.keras_images("cifar10", "test")()
    assert x.shape == (2, 32, 32, 3) and y.tolist() == [4, 6]


def test_images_that_keras_cannot_download_say_what_to_copy_where(tmp_path, monkeypatch):
    def offline():
        raise Exception("URL fetch failure: no route to host")

    monkeypatch.setitem(sys.modules, "keras", keras_with("cifar10", offline))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with pytest.raises(MissingEnvironment, match="cifar10 is not in .*datasets and cannot be downloaded .*no route"):
        datasets.keras_images("cifar10", "train")()


def test_an_unknown_set_of_images_is_refused():
    with pytest.raises(UsageError, match=r"no images 'cifar' \(did you mean 'cifar10'\?\); it has mnist, "):
        datasets.keras_images("cifar", "train")


def keras_with(name, load_data):
    """A Keras that has nothing but one data set, so that no framework is in this test."""
    return SimpleNamespace(datasets=SimpleNamespace(**{name: SimpleNamespace(load_data=load_data)}))


def test_an_unknown_split_is_refused():
    for function in (datasets.digits, datasets.mnist, datasets.affairs):
        with pytest.raises(UsageError, match="has no split 'validation'; it has 'train' and 'test'"):
            function("validation")


def test_the_local_copy_of_mnist_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "datasets").mkdir()
    images = np.arange(2 * 28 * 28).reshape(2, 28, 28).astype(np.uint8)
    labels = np.array([3, 9], np.uint8)
    np.savez(tmp_path / "datasets" / "mnist.npz", x_train=images, y_train=labels, x_test=images[:1], y_test=labels[:1])
    x, y = datasets.mnist("train")()
    assert x.shape == (2, 28, 28, 1) and x.dtype == np.float32 and x.max() == 1
    assert y.tolist() == [3, 9] and y.dtype == np.int32
    assert datasets.mnist("test")()[0].shape == (1, 28, 28, 1)


def test_a_damaged_copy_of_mnist_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "mnist.npz").write_bytes(b"half of it")
    with pytest.raises(MissingEnvironment, match="mnist.npz is not Keras's mnist.npz .*; remove it or replace it"):
        datasets.mnist("train")()


def test_mnist_that_cannot_be_downloaded_says_which_file_to_put_where(tmp_path, monkeypatch):
    class Keras:  # no framework in this test
        class datasets:
            class mnist:
                @staticmethod
                def load_data():
                    raise Exception("URL fetch failure: no route to host")

    monkeypatch.setitem(sys.modules, "keras", Keras)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with pytest.raises(MissingEnvironment) as refusal:
        datasets.mnist("train")()
    assert f"MNIST is not at {tmp_path / 'datasets' / 'mnist.npz'}" in str(refusal.value)
    assert "no route to host" in str(refusal.value) and "put Keras's mnist.npz there" in str(refusal.value)
