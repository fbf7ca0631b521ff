"""The variants of a parity check: numbers a little off, so that kinks and rounding are known for what they are."""

import numpy as np
import pytest

from kmgpu.backends.adapter import State, StepResult
from kmgpu.data.loader import Batch
from kmgpu.worker import parity


class Product:
    """An adapter of one weight, whose loss is its product with the input's sum."""

    def __init__(self, weight):
        self.state = State([np.array([weight], np.float32)], [], [])

    def load_state(self, state):
        self.state = state

    def put(self, batch):
        return batch

    def step_result(self, update):
        loss = sum(float(batch.x.sum()) for batch in update) * float(self.state.trainable[0][0])
        return StepResult(loss, [], [], {})


def update(x):
    x = np.asarray(x)
    return (Batch(0, np.arange(len(x)), 0, x, x, None, 0, len(x)),)


@pytest.mark.parametrize("kind", ("float32", "int32"))
def test_every_variant_of_numbers_or_of_words_is_a_little_off(kind):
    adapter = Product(2.0)
    state, batch = adapter.state, update(np.arange(1, 5, dtype=kind))
    losses = {v: parity._result(adapter, batch, v, state, "float32").loss for v in parity.VARIANTS}
    assert losses["batch"] == 20 and adapter.state is state, "what was moved is put back"
    apart = {variant: abs(loss - 20) / 20 for variant, loss in losses.items()}
    assert 0 < apart["rounded"] < 1e-6 and 1e-5 < apart["moved"] < 0.1 and apart["moved"] != apart["moved again"]
    again = {v: parity._result(adapter, batch, v, state, "float32").loss for v in parity.VARIANTS}
    assert again == losses, "the same in every cell"


def test_inputs_move_where_they_can_and_weights_where_they_cannot():
    assert parity._floating(update([0.5, 1.0])) and not parity._floating(update([1, 2]))
