"""What portable draws compute by themselves."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

from kmgpu.backends.common.draws import float32
from kmgpu.backends.common.randomness import refuse
from kmgpu.errors import UsageError


def test_float32_rounds_as_numpy_does():
    generator = random.Random(0)
    for _ in range(10_000):
        value = generator.choice((-1, 1)) * generator.random() * 10.0 ** generator.randint(-20, 20)
        assert float32(value) == float(np.float32(value)), value
    assert [float32(value) for value in (0, 1, 0.5, -3)] == [0, 1, 0.5, -3]


def test_a_layer_that_bypasses_keras_random_is_refused_in_one_sentence():
    layer = type("AugMix", (), {"__module__": "keras.src.layers.preprocessing", "name": "aug_mix"})()
    own = type("AugMix", (), {"name": "own"})()  # a user's, which may well draw from keras.random
    refuse(SimpleNamespace(_flatten_layers=lambda: [own]))
    with pytest.raises(UsageError, match="no numbers for AugMix .layer 'aug_mix'.*--randomness native"):
        refuse(SimpleNamespace(_flatten_layers=lambda: [own, layer]))
