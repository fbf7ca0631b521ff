"""JAX: the devices of the process."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from kmgpu.backends import common
from kmgpu.backends.adapter import Place
from kmgpu.errors import MissingEnvironment

devices: list[Any] = []  # once started


def start(place: Place) -> None:
    """Initialise the devices of this process."""
    if place.device_kind == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", place.devices)
        devices[:] = jax.devices()
        return
    try:
        found = jax.devices("gpu")
    except RuntimeError:
        found = []
    chosen = place.device_ids or tuple(range(place.devices))
    if len(found) <= max(chosen):
        raise MissingEnvironment(
            f"JAX sees {len(found)} GPUs, the run asks for device {max(chosen)}; "
            "install jax[cuda13] or use --device-kind cpu"
        )
    devices[:] = [found[index] for index in chosen]


def stock(place: Place) -> tuple[Any, Any, str]:
    """Start the devices; return Keras, whose fit divides over all of them, an idle context, the framework."""
    keras = common.stock_keras("jax")
    start(place)
    if place.devices > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    return keras, contextlib.nullcontext(), f"jax {jax.__version__}"


def lost_peer(error: BaseException) -> bool:
    """There is only one process."""
    return False
