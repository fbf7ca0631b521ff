"""The table of backends and strategies: the light half of a backend, which needs no framework."""

from __future__ import annotations

from dataclasses import dataclass

from kmgpu.errors import UsageError, nearest


@dataclass(frozen=True)
class Strategy:
    """One way to train on several devices; its adapter is imported by name inside a worker and nowhere else."""

    backend: str
    name: str
    adapter: str  # module with `start(place)` and `Adapter(place, devices)`
    stock: str  # module with `stock(place)`: Keras as shipped, and the context in which its fit uses the devices
    fits_on_several: bool  # whether Keras's own fit uses several devices
    words: str  # module of the integers that portable random numbers are made of
    one_process_per_device: bool
    distributions: tuple[str, ...]  # installed packages any of which brings the framework
    module: str  # the framework's import name
    cpu_environment: dict[str, str]  # set for workers on virtual CPU devices
    deterministic_environment: dict[str, str]  # set for deterministic runs; added to what a variable of flags holds


STRATEGIES = (
    Strategy(
        backend="torch",
        name="ddp",
        adapter="kmgpu.backends.torch_ddp",
        stock="kmgpu.backends.torch_devices",
        fits_on_several=False,
        words="kmgpu.backends.torch_random",
        one_process_per_device=True,
        distributions=("torch",),
        module="torch",
        cpu_environment={"GLOO_SOCKET_IFNAME": "lo"},
        deterministic_environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    ),
    Strategy(
        backend="tensorflow",
        name="mirrored",
        adapter="kmgpu.backends.tf_mirrored",
        stock="kmgpu.backends.tf_devices",
        fits_on_several=True,
        words="kmgpu.backends.tf_random",
        one_process_per_device=False,
        distributions=("tensorflow", "tensorflow-cpu"),
        module="tensorflow",
        cpu_environment={},
        deterministic_environment={},
    ),
    Strategy(
        backend="jax",
        name="data_parallel",
        adapter="kmgpu.backends.jax_data_parallel",
        stock="kmgpu.backends.jax_devices",
        fits_on_several=True,
        words="kmgpu.backends.jax_random",
        one_process_per_device=False,
        distributions=("jax",),
        module="jax",
        # XLA sizes its pool by NPROC; virtual devices that share a pool smaller than the devices deadlock.
        cpu_environment={"NPROC": "64"},
        deterministic_environment={"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"},
    ),
)

BACKENDS = tuple(dict.fromkeys(strategy.backend for strategy in STRATEGIES))


def find(backend: str, strategy: str | None = None) -> Strategy:
    """Return a row of the table; the first of a backend where no strategy is named. Raises UsageError."""
    if backend not in BACKENDS:
        raise UsageError(f"no backend {backend!r}{nearest(backend, list(BACKENDS))}; there are {', '.join(BACKENDS)}")
    rows = [row for row in STRATEGIES if row.backend == backend]
    if strategy is None:
        return rows[0]
    names = [row.name for row in rows]
    if strategy not in names:
        raise UsageError(f"{backend} has no strategy {strategy!r}{nearest(strategy, names)}; it has {', '.join(names)}")
    return rows[names.index(strategy)]
