"""Keras's own ``fit`` on one device: what kmgpu's one device is compared with, since it replaces parts of Keras.

    KERAS_BACKEND=torch python stock.py TODO.json OUT.npz

TODO.json lists {"name", "recipe", "settings", "initial_weights"}; OUT.npz gets "<name>/weights/<number>" in model order
and "<name>/history/<metric>". Also {"name", "model", "recipe"}: the scores of a saved model on the validation data of a
recipe, as "<name>/scores".
"""

import importlib.util
import json
import sys
from pathlib import Path

import keras
import numpy as np
from safetensors.numpy import load_file


def load(path, settings):
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(f"recipe_{Path(path).stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.recipe(**settings)


def fit(recipe, initial_weights):
    """Return the history and the weights of a recipe that ran as it stands."""
    x, y, *weights = recipe.train
    model = recipe.model
    if not model.built:
        model(keras.tree.map_structure(lambda array: array[:1], x))
    tensors = load_file(initial_weights)
    for variable, key in zip(model.weights, sorted(tensors), strict=True):
        variable.assign(tensors[key].reshape(variable.shape))
    history = model.fit(
        x, y, sample_weight=weights[0] if weights else None, batch_size=recipe.batch_size, epochs=recipe.epochs,
        shuffle=False, class_weight=recipe.class_weight, validation_data=recipe.validation, verbose=0,
    )  # fmt: skip
    return history.history, [keras.ops.convert_to_numpy(variable) for variable in model.weights]


def main(todo, out):
    found = {}
    for task in json.loads(Path(todo).read_text()):
        keras.backend.clear_session()
        recipe = load(task["recipe"], task.get("settings", {}))
        name = task["name"]
        if "model" in task:
            model = keras.models.load_model(task["model"])
            x, y = recipe.validation
            found[f"{name}/scores"] = np.ravel(model.evaluate(x, y, batch_size=recipe.batch_size, verbose=0))
            continue
        history, weights = fit(recipe, task["initial_weights"])
        found |= {f"{name}/weights/{number:04d}": value for number, value in enumerate(weights)}
        found |= {f"{name}/history/{metric}": np.array(values) for metric, values in history.items()}
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
