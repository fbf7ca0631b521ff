"""What callbacks remember survives JSON and arrays: plain attributes that have changed, or what they say themselves."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from kmgpu import records
from kmgpu.worker.callback_state import Memories


class Plain:
    def __init__(self):
        self.wait, self.best, self.path, self.log = 0, None, "a", open
        self.values = []


class Says(Plain):
    def state_dict(self):
        return {"wait": self.wait + 100}

    def load_state_dict(self, state):
        self.wait = state["wait"]


VALUES = {
    "none": None, "flag": True, "number": 2**70, "infinite": float("inf"), "text": "ü",
    "list": [1, (2.5, "x"), {"a": {3: None}}], "set": {3, 1}, "deque": deque([1, 2], maxlen=2),
    "scalar": np.float32(0.1), "arrays": [np.zeros(0), np.ones(())],
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
}  # fmt: skip


def handed_on(memories: Memories) -> tuple[dict, dict]:
    found, arrays = memories.take()
    return records.loads(records.dumps(found)), arrays


@pytest.mark.parametrize("name", VALUES)
def test_every_plain_value_comes_back_as_it_was(name):
    before, after = Plain(), Plain()
    memories, others = Memories([before]), Memories([after])
    memories.begin()
    before.best = VALUES[name]
    assert others.give(*handed_on(memories)) == []
    assert type(after.best) is type(VALUES[name])
    if isinstance(VALUES[name], np.ndarray):
        assert after.best.dtype == before.best.dtype and after.best.flags.writeable
    np.testing.assert_equal(after.best, before.best)


def test_what_has_not_changed_is_not_stored_and_what_the_first_hook_has_set_is():
    callback = Plain()
    memories = Memories([callback])
    callback.wait = 7
    memories.begin()
    callback.wait = 0  # as it was made, and another one than a run that is resumed begins with
    callback.values.append(3)
    assert memories.take()[0] == {"Plain-0": {"attributes": {"wait": 0, "values": {"list": [3]}}}}


def test_an_array_that_changes_in_place_is_stored_as_it_is_now():
    callback = Plain()
    callback.values = np.zeros(2)
    memories = Memories([callback])
    memories.begin()
    callback.values += 1
    _, arrays = memories.take()
    callback.values += 1
    assert [array.tolist() for array in arrays.values()] == [[1, 1]]


def test_a_callback_says_itself_what_it_remembers():
    before, after = Says(), Says()
    found = handed_on(Memories([before]))
    assert Memories([after]).give(*found) == [] and after.wait == 100


def test_callbacks_are_known_by_class_and_number_and_unknown_ones_are_named():
    first, second = Plain(), Plain()
    memories = Memories([first, second])
    second.wait = 5
    others = [Plain(), Says(), Plain()]
    assert Memories(others).give(*handed_on(memories)) == ["Says"]
    assert [other.wait for other in others] == [0, 0, 5]


def test_keras_attributes_of_one_process_are_left_out():
    class MonitorCallback(Plain):
        __module__ = "keras.src.callbacks.monitor_callback"

    class Mine(MonitorCallback):
        pass

    callback = Mine()
    memories = Memories([callback])
    memories.begin()
    callback.min_delta, callback.params, callback.wait = -1, {"epochs": 3}, 2
    assert memories.take()[0]["Mine-0"]["attributes"] == {"wait": 2}


def test_a_note_names_what_checkpoints_do_not_hold():
    callback = Plain()
    assert Memories([callback]).notes() == []
    callback.random, callback.table = np.random.default_rng(0), {"a": SimpleNamespace()}
    (note,) = Memories([callback]).notes()
    assert "do not hold random (Generator), table (dict) of the callback Plain" in note
