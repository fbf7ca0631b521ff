"""What exceptions of frameworks and recipes mean, in one sentence."""

from __future__ import annotations

import fake_runs
import pytest

from kmgpu.errors import OutOfMemory, UsageError
from kmgpu.worker.failures import meaning


class ResourceExhaustedError(Exception):
    """As TensorFlow's is called."""


def meant(error, **fields):
    job = fake_runs.job("torch", 2, **fields)
    return meaning(error, job, process=1, processes=2, batch_size=64, peak_bytes=3 * 2**20)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 16.0 GiB for an array"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4398046511104 bytes."),
        ResourceExhaustedError("{{function_node}} failed to allocate"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_out_of_memory_is_named_with_rank_batch_and_peak(error):
    found = meant(error)
    assert isinstance(found, OutOfMemory) and "\n" not in str(found)
    assert str(found).startswith("process 1 of 2 ran out of memory (global batch 64, peak 3 MiB): ")
    assert str(error) in str(found)


def test_what_a_recipe_raised_is_found_behind_the_sentence_about_it():
    wrapped = UsageError("recipe.py, line 3 raised RuntimeError: std::bad_alloc")
    wrapped.__cause__ = RuntimeError("std::bad_alloc")
    assert isinstance(meant(wrapped), OutOfMemory)


def test_an_operation_without_a_deterministic_form_is_named_in_a_deterministic_run():
    error = RuntimeError(
        "put_ does not have a deterministic implementation, but you set 'use_deterministic_algorithms'"
    )
    found = meant(error, deterministic=True)
    assert isinstance(found, UsageError) and str(found).startswith("--deterministic: RuntimeError: put_ does not have")
    assert meant(error) is None


def test_other_exceptions_speak_for_themselves():
    assert meant(ValueError("shapes")) is None and meant(UsageError("out of memory of the recipe's own")) is None
