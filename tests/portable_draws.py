"""Portable random numbers of one backend, for tests to compare: python portable_draws.py BACKEND OUT.npz

"known/<case>" are both words of Threefry-2x32 for published cases, "<draw>" numbers of a draw, "<way>/<draw>" the same
from a function that is compiled in one of WAYS; on JAX "stock/<draw>" are jax.random's own. "streams" are words of
(step, replica, number): the replicas of a step share its key, of which each has its own rows.
"""

import importlib
import sys

import numpy as np

from kmgpu.backends import common

SEED = (123456789, 7)
KNOWN = {  # (key, counter): Random123's known answers for Threefry-2x32 with 20 rounds (tests/kat_vectors)
    "zeros": ((0, 0), (0, 0)),
    "ones": ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF)),
    "pi": ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)),
}
MODULES = {"torch": "torch_random", "tensorflow": "tf_random", "jax": "jax_random"}


def draw_all(draws, words, key, x, without=()):
    """Return draws of every kind; ``x`` is (64, 30) float32."""
    makers = {
        "bits": lambda: words.bits(key, 0, (40, 25)),
        "bits_from_row_3": lambda: words.bits(key, 75, (37, 25)),
        "bits_across_words": lambda: words.bits(key, 2**32 - 5, (10,)),
        "uniform": lambda: draws.uniform(words, key, 0, (20000,), 0.0, 1.0, "float32"),
        "uniform_wide": lambda: draws.uniform(words, key, 0, (20000,), -36.0, 36.0, "float32"),
        "uniform_odd": lambda: draws.uniform(words, key, 3, (20000,), 2, 7.3, "float32"),
        "uniform_float16": lambda: draws.uniform(words, key, 0, (5000,), 0.0, 1.0, "float16"),
        "normal": lambda: draws.normal(words, key, 0, (200000,), 0.0, 1.0, "float32"),
        "normal_moved": lambda: draws.normal(words, key, 0, (20000,), 0.3, 1.7, "float32"),
        "truncated_normal": lambda: draws.truncated_normal(words, key, 0, (20000,), 0.0, 1.0, "float32"),
        "randint": lambda: draws.randint(words, key, 0, (20000,), -5, 1000),
        "randint_wide": lambda: draws.randint(words, key, 0, (20000,), 0, 100003),
        "dropout": lambda: draws.dropout(words, key, 0, x, 0.3, (64, 30)),
        "categorical": lambda: draws.categorical(words, key, 0, x, 5),
        "shuffle": lambda: draws.shuffle(words, key, x, 0),
        "gamma": lambda: draws.gamma(words, key, 0, (5000,), 2.5, "float32"),
        "gamma_small": lambda: draws.gamma(words, key, 0, (5000,), 0.3, "float32"),
        "beta": lambda: draws.beta(words, key, 0, (5000,), 0.4, 0.9, "float32"),
        "binomial": lambda: draws.binomial(words, key, 0, (2000,), 20, 0.3, "float32"),
    }
    return {name: make() for name, make in makers.items() if name not in without}


STEPS, REPLICAS, NUMBERS = 16, 4, 2048
WAYS = {"torch": ("dynamo", "operators"), "tensorflow": ("graph", "xla"), "jax": ("jit",)}
SLOW = {"gamma", "gamma_small", "beta", "binomial"}  # in what torch.compile takes apart


def compiled(backend, way, function):
    """Return what a function of the draws' names to leave out gives, compiled; all of it is one graph."""
    if backend == "jax":
        import jax

        return jax.jit(function)()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False, jit_compile=way == "xla")()
    import torch

    if way == "dynamo":  # what Inductor turns into C++ or Triton, without the minutes that this takes
        return torch.compile(lambda: function(SLOW), fullgraph=True, backend="aot_eager")()
    from kmgpu.backends import torch_threefry

    torch_threefry.library = lambda: None  # as on a machine without a C compiler
    return function()


def stock(key):
    import jax

    key = jax.numpy.asarray(key, "uint32")
    return {
        "bits": jax.random.bits(key, (40, 25), "uint32").view("int32"),
        "uniform": jax.random.uniform(key, (20000,)),
        "uniform_wide": jax.jit(lambda key: jax.random.uniform(key, (20000,), minval=-36.0, maxval=36.0))(key),
        "uniform_float16": jax.random.uniform(key, (5000,), "float16"),
        "randint": jax.random.randint(key, (20000,), -5, 1000),
        "randint_wide": jax.random.randint(key, (20000,), 0, 100003),
        "kept": jax.random.bernoulli(key, 0.7, (64, 30)),
        "normal": jax.random.normal(key, (200000,)),
    }


def main(backend, out):
    keras = common.import_keras(backend)
    importlib.import_module("kmgpu.backends.replacements").install(float64=False)  # as in a run
    draws = importlib.import_module("kmgpu.backends.common.draws")
    words = importlib.import_module(f"kmgpu.backends.{MODULES[backend]}")

    def as_key(pair):
        return keras.ops.convert_to_tensor(np.array(pair, np.int64), dtype="int64" if backend != "jax" else "uint32")

    x = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(64, 30)).astype(np.float32))
    found = {f"known/{name}": words.bits(as_key(key), (c[0] << 32) | c[1], (1,)) for name, (key, c) in KNOWN.items()}
    found |= draw_all(draws, words, as_key(SEED), x)
    own = as_key(SEED)
    steps = [as_key((SEED[0], step)) for step in range(STEPS)]
    streams = [words.bits(key, part * NUMBERS, (NUMBERS,)) for key in steps for part in range(REPLICAS)]
    found["streams"] = keras.ops.reshape(keras.ops.stack(streams), (STEPS, REPLICAS, NUMBERS))
    for way in WAYS[backend]:
        inside = compiled(backend, way, lambda without=(): draw_all(draws, words, own, x, without))
        found |= {f"{way}/{name}": value for name, value in inside.items()}
    if backend == "jax":
        found |= {f"stock/{name}": value for name, value in stock(SEED).items()}
    np.savez(out, **{name: keras.ops.convert_to_numpy(value) for name, value in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
