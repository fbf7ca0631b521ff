"""Each replaced function of Keras is still wrong without the replacement, and right with it; else it may go."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.workers

TORCH = """
    import torch
    from kmgpu.backends import common, replacements
    common.import_keras("torch")
    from keras.src import backend

    def query_gradient():
        query, key, value = (torch.linspace(-1, 1, 24).reshape(1, 3, 2, 4) + shift for shift in (0.0, 0.3, 0.7))
        query.requires_grad_(True)
        mask = torch.tensor([[[[True, True, False], [False, False, False], [True, True, True]]]])
        outputs = backend.nn.dot_product_attention(query, key, value, mask=mask)
        (outputs ** 2).sum().backward()
        return outputs.detach(), query.grad

    stock = query_gradient()
    replacements.install(float64=False)
    cured = query_gradient()
    assert stock[1][0, 1].abs().max() > 1e-6, "a query that may attend to nothing gets no gradient any more: cured"
    assert cured[1][0, 1].abs().max() == 0
    alive = [0, 2]
    assert torch.equal(stock[0][0, alive], cured[0][0, alive])
    assert torch.allclose(stock[0], cured[0], atol=1e-6), "it gets the mean of the values, as before"
    assert torch.allclose(stock[1][0, alive], cured[1][0, alive], atol=1e-7)
"""

TENSORFLOW = """
    import numpy as np
    from kmgpu.backends import common, replacements
    keras = common.import_keras("tensorflow")
    import tensorflow as tf
    from scipy.special import erf
    from keras.src import backend

    x = np.linspace(-3, 3, 101)
    exact_gelu = 0.5 * x * (1 + erf(x / np.sqrt(2)))
    predictions, targets = np.array([[0.1, 0.3, 0.2], [0.5, 0.1, 0.4]]), np.array([2, 1])

    def decayed():
        optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.004)
        variable = keras.Variable(np.ones(1), dtype="float64")
        optimizer.build([variable])
        optimizer.learning_rate.assign(0.0)
        optimizer._learning_rate = keras.Variable(np.float64(0.5), dtype="float64")
        optimizer._apply_weight_decay([variable])
        return float(variable.numpy()[0])

    def errors():
        return [
            abs(float(backend.core.cast(0.999, "float64")) - 0.999),
            np.abs(np.asarray(backend.nn.gelu(tf.constant(x), approximate=False)) - exact_gelu).max(),
            abs(decayed() - (1 - 0.004 * 0.5)),
        ]

    stock = errors()
    replacements.install(float64=True)
    cured = errors()
    assert min(stock) > 1e-12, f"one of these is computed in float64 now: {stock}"
    assert max(cured) < 1e-15, cured
    assert np.asarray(backend.math.in_top_k(targets, predictions, 1)).tolist() == [False, False]
    assert np.asarray(backend.math.in_top_k(targets, predictions, 2)).tolist() == [True, False]
    replacements.install(float64=False)
    try:
        backend.math.in_top_k(targets, tf.constant(predictions), 1)
    except Exception:
        pass
    else:
        raise AssertionError("tf.math.in_top_k takes float64 now")
"""

JAX = """
    import numpy as np
    import jax
    jax.config.update("jax_enable_x64", True)
    from kmgpu.backends import common, replacements
    common.import_keras("jax")
    from keras.src import backend

    generator = np.random.default_rng(0)
    query, key, value = (generator.normal(size=(2, 3, 2, 4)) for _ in range(3))
    mask = np.ones((2, 1, 3, 3), bool)
    mask[0, 0, 1] = [True, False, False]
    logits = np.where(mask, np.einsum("BTNH,BSNH->BNTS", query, key) / 2, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    exact = np.einsum("BNTS,BSNH->BTNH", weights / weights.sum(-1, keepdims=True), value)

    def error():
        arrays = [jax.numpy.asarray(array) for array in (query, key, value)]
        return np.abs(np.asarray(backend.nn.dot_product_attention(*arrays, mask=jax.numpy.asarray(mask))) - exact).max()

    stock = error()
    replacements.install(float64=True)
    cured = error()
    assert stock > 1e-10, "jax.nn.dot_product_attention computes in float64 now"
    assert cured < 1e-14, cured
"""

SCHEDULE_FREE = """
    import numpy as np
    from kmgpu.backends import common, replacements
    keras = common.import_keras({backend!r})

    def steps():
        optimizer = keras.optimizers.ScheduleFreeAdamW(0.1)
        variable = keras.Variable(np.ones(1, np.float32))
        optimizer.build([variable])
        for gradient in (1.0, -3.0, 2.0):
            optimizer.apply([keras.ops.convert_to_tensor(np.full(1, gradient, np.float32))], [variable])
        return float(keras.ops.convert_to_numpy(variable.value)[0])

    y = x = z = 1.0
    velocity = 0.0
    for step, gradient in enumerate((1.0, -3.0, 2.0), 1):
        velocity += (gradient ** 2 - velocity) * 0.001
        z -= 0.1 * gradient / ((velocity / (1 - 0.999 ** step)) ** 0.5 + 1e-8)
        x += (z - x) / step
        y = 0.1 * z + 0.9 * x
    stock = steps()
    replacements.install(float64=False)
    cured = steps()
    assert abs(stock - y) > 1e-3, "ScheduleFreeAdamW takes the old momentum: cured"
    assert abs(cured - y) < 1e-6, (cured, y)
"""

RECOMPUTED = """
    import numpy as np
    from kmgpu.backends import common, replacements
    keras = common.import_keras("tensorflow")
    import tensorflow as tf

    def gradient():
        with keras.RematScope(mode="full"):
            layer = keras.layers.Dropout(0.0)
        x = tf.Variable([[0.3, -0.7]])

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                y = layer(x, training=True)
            return tape.gradient(y, x)

        return step().numpy()

    try:
        gradient()
        raise SystemExit("a layer is recomputed in a graph with keywords: cured")
    except ValueError as error:
        assert "keyword" in str(error), error
    replacements.install(float64=False)
    assert np.array_equal(gradient(), np.ones((1, 2), "float32"))
"""

RANDOM_CROP = """
    import jax
    import numpy as np
    from kmgpu.backends import common, replacements
    keras = common.import_keras("jax")

    x = np.arange(2 * 5 * 7 * 1, dtype="float32").reshape(2, 5, 7, 1)
    layer = keras.layers.RandomCrop(3, 4, seed=1)
    layer.build(x.shape)
    states = [variable.value for variable in layer.non_trainable_variables]

    def crop(x):
        return layer.stateless_call([], states, x, training=True)[0]

    stock = np.asarray(crop(x))
    try:
        jax.jit(crop)(x)
    except IndexError:
        pass
    else:
        raise AssertionError("Keras compiles it: cured")
    replacements.install(float64=False)
    cured = np.asarray(jax.jit(crop)(x))
    assert cured.shape == (2, 3, 4, 1) and np.array_equal(cured, stock)
"""

SCRIPTS = {
    "random_crop": RANDOM_CROP,
    "torch": TORCH, "tensorflow": TENSORFLOW, "jax": JAX, "recomputed": RECOMPUTED,
    **{f"schedule-free-{name}": SCHEDULE_FREE.replace("{backend!r}", repr(name)) for name in ("torch", "tensorflow")},
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_keras_still_needs_what_replaces_it(script):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
