"""The shipped data sets have the shapes and ranges they promise, and say what to do where a file is missing."""

import functools
import importlib.util
import subprocess
import sys

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


def test_an_unknown_split_is_refused():
    for function in (datasets.digits, datasets.mnist):
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
