"""A plain Keras program that draws portable numbers: python portable_program.py BACKEND OUT.npz

"mask" is dropout of ones; for each way to run a step, "<way>/losses" and "<way>/<number of a weight>" after an epoch.
"again" and "native" are drawn after and before, by the framework itself.
"""

import contextlib
import os
import sys

import numpy as np

WAYS = {"compiled": {}, "eager": {"run_eagerly": True}, "xla": {"jit_compile": True}}


def main(backend, out, *ways):
    os.environ["KERAS_BACKEND"] = backend
    import keras

    import kmgpu

    def draw():
        return keras.random.uniform((5,), seed=3)

    def model_of(options):
        keras.utils.set_random_seed(7)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((6, 4)),
                layers.Dense(8, activation="tanh"),
                layers.Dropout(0.3),
                layers.GaussianNoise(0.1, seed=1),
                layers.SpatialDropout1D(0.2),
                layers.Flatten(),
                layers.AlphaDropout(0.2),
                layers.Dense(1),
            ]
        )
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", **options)
        return model

    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 6, 4)).astype("float32"), random.normal(size=(20, 1)).astype("float32")
    found = {"native": draw()}
    if backend == "torch":
        import torch

        model = model_of({})
        model.build((None, 6, 4))
        explained = torch._dynamo.explain(lambda x: model(x, training=True))(torch.from_numpy(x))
        found["native graph breaks"] = np.array(explained.graph_break_count)
        torch._dynamo.reset()
    with kmgpu.random.portable():
        found["uniform"] = draw()
        found["mask"] = keras.layers.Dropout(0.5, seed=11)(np.ones((4, 6), "float32"), training=True)
        for way in ways or ("compiled", "eager"):
            model = model_of(WAYS[way])
            with contextlib.redirect_stdout(sys.stderr):
                history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
            found[f"{way}/losses"] = np.array(history.history["loss"])
            found |= {f"{way}/{number}": weight for number, weight in enumerate(model.get_weights())}
        if backend == "torch":
            model = model_of({})
            model.optimizer.build(model.trainable_variables)
            seeds = [weight.numpy() for weight in model.non_trainable_variables]
            found["outputs"] = model(x, training=True).detach()
            for variable, value in zip(model.non_trainable_variables, seeds, strict=True):
                variable.assign(value)
            whole = torch.compile(lambda x: model(x, training=True), fullgraph=True, backend="aot_eager")
            found["outputs of one graph"] = whole(torch.from_numpy(x)).detach()
    found["again"] = draw()
    np.savez(out, **{name: keras.ops.convert_to_numpy(value) for name, value in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
