"""Texts that every Python brings, and texts as numbers."""

import numpy as np
import pytest

from kmgpu.data import texts
from kmgpu.errors import UsageError


def test_the_language_reference_is_one_long_text_in_two_parts():
    train, test = texts.python_docs("train"), texts.python_docs("test")
    assert len(train) > 300_000 and 0.09 < len(test) / (len(train) + len(test)) < 0.11
    assert "assert" in train and "\n\n" in train


def test_docstrings_are_of_eight_packages_and_each_is_there_once():
    train, labels = texts.python_docstrings("train")
    test, test_labels = texts.python_docstrings("test")
    assert len(train) == len(labels) > 1000 and len(test) == len(test_labels) > 250
    assert not set(train) & set(test) and len(set(train)) == len(train)
    assert labels.dtype == np.int32 and (np.bincount(test_labels, minlength=len(texts.PACKAGES)) >= 10).all()
    assert "Event loop" in " ".join(text for text, label in zip(train, labels, strict=True) if label == 0)


def test_an_unknown_split_is_refused():
    for function in (texts.python_docs, texts.python_docstrings):
        with pytest.raises(UsageError, match="has no split 'all'; it has 'train' and 'test'"):
            function("all")


def test_texts_become_numbers_by_the_frequency_of_their_words():
    assert texts.words("A cat, 42 cats!") == ["a", "cat", ",", "4", "2", "cats", "!"]
    known = texts.vocabulary(["b", "a", "b", "c", "a"], 4)
    assert known == {"a": 2, "b": 3}, "the most frequent, equal ones in order; 0 and 1 are padding and unknown"
    assert texts.encode([["a", "c"], ["b", "a", "b", "a"]], known, 3).tolist() == [[2, 1, 0], [3, 2, 3]]
