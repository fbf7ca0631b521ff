"""TensorFlow: the devices of the process."""

from __future__ import annotations

import contextlib
from typing import Any

from kmgpu.backends import common
from kmgpu.backends.adapter import Place
from kmgpu.errors import MissingEnvironment

keras = common.stock_keras("tensorflow")
import tensorflow as tf  # noqa: E402  # after Keras, since tensorflow.lite would import JAX while nothing blocks it

devices: list[str] = []  # their names, once started


def start(place: Place) -> None:
    """Initialise the devices of this process."""
    tf.config.threading.set_intra_op_parallelism_threads(place.threads)
    tf.config.threading.set_inter_op_parallelism_threads(place.threads)
    if place.deterministic:
        tf.config.experimental.enable_op_determinism()
    if place.device_kind == "gpu":
        gpus = tf.config.list_physical_devices("GPU")
        chosen = place.device_ids or tuple(range(place.devices))
        if len(gpus) <= max(chosen):
            raise MissingEnvironment(
                f"TensorFlow sees {len(gpus)} GPUs, the run asks for device {max(chosen)}; "
                "install tensorflow[and-cuda] or use --device-kind cpu"
            )
        gpus = [gpus[index] for index in chosen]
        tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    else:
        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(place.devices)]
        tf.config.set_logical_device_configuration(cpu, logical)
    devices[:] = [device.name for device in tf.config.list_logical_devices(place.device_kind.upper())]


def lost_peer(error: BaseException) -> bool:
    """There is only one process."""
    return False


def stock(place: Place) -> tuple[Any, Any, str]:
    """Start the devices; return Keras as shipped, the scope of models that its fit divides, and the framework."""
    start(place)
    scope = tf.distribute.MirroredStrategy(devices).scope() if place.devices > 1 else contextlib.nullcontext()
    return keras, scope, f"tensorflow {tf.__version__}"
