"""N devices compute what one device computes, and three frameworks the same: feature by feature (tests/features.py)."""

from __future__ import annotations

import json

import cells
import features
import numpy as np
import pytest
from measured import EXACT, how
from safetensors.numpy import load_file

from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers

# Cells that Keras's own fit on torch runs too: a setting that it needs, and what it gives otherwise. On torch it takes
# ScheduleFreeAdamW's old momentum when it is the new one already, and a result that is a variable goes on changing.
STOCK = {
    "reductions": ({"none": "sum"}, ()),
    "loss-classes": ({}, ()),
    "coupled-losses": ({}, ()),
    "own-loss": ({}, ()),
    "layers": ({}, ()),
    "norms": ({}, ()),
    "optimizers": ({}, ("schedule_free", "loss")),
    "not-accumulated": ({}, ()),
    "all-metrics": ({}, ()),
    "own-metrics": ({}, ("a_largest",)),
}


def parameters() -> list[object]:
    """A test for each feature, backend and number of devices; the reference is not compared with itself."""
    found = []
    for feature in features.FEATURES:
        reference = feature.reference or (feature.cell, 1)
        for backend in BACKENDS:
            for devices in feature.devices:
                if (backend, feature.cell, devices) != ("jax", *reference):
                    name = f"{feature.title}-{backend}-{devices}"
                    found.append(pytest.param(feature, backend, devices, id=name))
    return found


@pytest.mark.parametrize(("feature", "backend", "devices"), parameters())
def test_a_feature_computes_what_one_device_computes(ran, measured, feature, backend, devices):
    run = ran(backend, feature.cell, devices)
    name, count = feature.reference or (feature.cell, 1)
    references = [ran("jax", name, count)]
    if feature.reference is None and devices > 1:
        references.append(ran(backend, name, 1))
    found = [feature.error(run, reference) for reference in references]
    for error, where in found:
        assert error < feature.tolerance, f"{where} is off by {error:.2g}"
    way = how(run)
    assert way == (feature.expected(backend) if devices > 1 else EXACT)
    measured.add(feature.title, run, max(error for error, _ in found))


REFUSE = """
import json, sys
import numpy as np
from kmgpu.backends import common
keras = common.import_keras(sys.argv[1])
from keras import ops
from kmgpu.data.loader import Batch, class_weights
from kmgpu.errors import UsageError

rows, y = np.ones((4, 2), "float32"), np.zeros((4, 1), "float32")

def built(loss="mse", kind=keras.Sequential):
    model = kind([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss=loss)
    common.build(model, Batch(0, np.arange(4), 0, rows, y, None))
    return model

said = []
for asked in json.loads(sys.argv[2]):
    try:
        eval(asked)
        said.append("")
    except UsageError as error:
        said.append(str(error))
print(json.dumps(said))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_be_exact_is_refused_in_one_line(measured, tmp_path, backend):
    asked = json.dumps(list(features.REFUSED_FEATURES.values()))
    answer = cells.python("-c", REFUSE, backend, asked, folder=tmp_path, limit=120)
    assert answer.code == 0, answer.err[-3000:]
    for title, said in zip(features.REFUSED_FEATURES, json.loads(answer.out.splitlines()[-1]), strict=True):
        assert said and "\n" not in said, f"{title}: {said!r}"
        measured.refused(title, backend)


@pytest.fixture(scope="module")
def stock(ran, tmp_path_factory):
    """What Keras's own fit makes of recipes on one device, from the weights that JAX's one device started from."""
    folder = tmp_path_factory.mktemp("stock")
    todo = []
    for name, (settings, _) in STOCK.items():
        run = ran("jax", name, 1)
        job = run.rundir.job()
        initial = str(run.rundir.initial_weights_file)
        todo.append(
            {"name": name, "recipe": job.recipe, "settings": job.settings | settings, "initial_weights": initial}
        )
    (folder / "todo.json").write_text(json.dumps(todo))
    answer = cells.python(str(cells.STOCK), "todo.json", "out.npz", folder=folder, KERAS_BACKEND="torch")
    assert answer.code == 0, answer.err[-3000:]
    with np.load(folder / "out.npz") as found:
        return dict(found)


@pytest.mark.parametrize("name", STOCK)
def test_one_device_computes_what_keras_fit_computes(ran, stock, name):
    run = ran("jax", name, 1)
    initial = load_file(run.rundir.initial_weights_file)
    for number, key in enumerate(sorted(initial)):
        truth = stock[f"{name}/weights/{number:04d}"]
        if any(part in STOCK[name][1] for part in key.split("/")):
            continue
        moved = np.abs(truth - initial[key]).max() or 1.0
        apart = np.abs(run.weights[key.partition("/")[2]] - truth).max()
        assert apart <= 1e-5 * moved, f"{key} is off by {apart / moved:.2g}"
    for metric in run.history[0].keys() - set(STOCK[name][1]):
        mine = np.array([epoch[metric] for epoch in run.history])
        np.testing.assert_allclose(mine, stock[f"{name}/history/{metric}"], rtol=1e-5, err_msg=metric)
