"""What a run needs before anything starts: an interpreter, devices, and what machine it is.

Nothing here imports a framework: installed packages are looked up by their metadata, GPUs are counted by NVML.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kmgpu import __version__, backends
from kmgpu.errors import MissingEnvironment, UsageError, expect

WORKER_NEEDS = ("keras", "numpy", "safetensors")  # beside the framework; what else a recipe imports is its own affair
OLDEST_PYTHON = (3, 11)
MOST_VIRTUAL_DEVICES = 64
PROBE_SECONDS = 60  # a first start from a cold network disk is slow

# Written down with a run because they change what it does or how fast. A list of what is allowed, so that no token of
# a cluster or a service ever lands in a run directory.
RECORDED_VARIABLES = (
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "JAX_DISABLE_JIT", "JAX_ENABLE_X64",
    "JAX_PLATFORMS", "KERAS_BACKEND", "LD_LIBRARY_PATH", "MKL_NUM_THREADS", "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NPROC",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS",
    "TF_FORCE_GPU_ALLOW_GROWTH", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "XLA_FLAGS", "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)  # fmt: skip


def interpreter(backend: str, python: Mapping[str, str] | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the Python that runs a backend's workers; raises MissingEnvironment if it cannot.

    It is what ``python`` (``--python BACKEND=PATH``) says, else KMGPU_PYTHON_<BACKEND>, else the running one.
    """
    strategy = backends.find(backend)
    expect("python", python, Mapping, "a dict such as {'jax': '/opt/jax/bin/python'}")
    for name in python or {}:
        backends.find(name)
    variable = f"KMGPU_PYTHON_{backend.upper()}"
    named = (python or {}).get(backend) or environ.get(variable)
    path = os.path.abspath(os.path.expanduser(named)) if named else sys.executable  # a venv's link stays a link
    said_by = f"--python {backend}={path}" if (python or {}).get(backend) else f"{variable}={path}" if named else path
    if os.path.isdir(path):
        inside = os.path.join(path, "bin", "python")
        hint = f"did you mean {inside}?" if os.path.isfile(inside) else "name the interpreter in it"
        raise MissingEnvironment(f"{said_by}: this is a directory; {hint}")
    if not os.path.isfile(path):
        raise MissingEnvironment(f"{said_by}: no such file; it must be a Python with {strategy.module} and keras")
    if not os.access(path, os.X_OK):
        raise MissingEnvironment(f"{said_by}: the file is not executable; it must be a Python interpreter")
    found = _versions(strategy, path, said_by)
    missing = [name for name, version in found.items() if version is None]
    if missing:
        raise MissingEnvironment(
            f"{path} has no {' and no '.join(missing)}, which {backend} needs: install with "
            f"`{path} -m pip install {' '.join(missing)}`, or name another interpreter with --python {backend}=PATH"
        )
    return path


def versions(backend: str, path: str) -> dict[str, str | None]:
    """Return the versions of what a backend's workers load in an interpreter: its framework, keras and others."""
    return _versions(backends.find(backend), path, path)


def packages(path: str, names: Sequence[str]) -> dict[str, str | None]:
    """Return the versions of packages in an interpreter, None for those that it does not have."""
    modules = {name: [name] for name in names}
    return installed(modules) if path == sys.executable else _ask(path, path, modules)


def _versions(strategy: backends.Strategy, path: str, said_by: str) -> dict[str, str | None]:
    modules = {strategy.module: list(strategy.distributions), **{name: [name] for name in WORKER_NEEDS}}
    return installed(modules) if path == sys.executable else _ask(path, said_by, modules)


def installed(modules: dict[str, list[str]]) -> dict[str, str | None]:
    """Return for each module the version of the distribution that brings it, "unknown" without one, None if absent."""
    found: dict[str, str | None] = {}
    for module, distributions in modules.items():
        spec = importlib.util.find_spec(module)  # of a top-level name: imports nothing
        present = spec is not None and spec.origin is not None  # no origin: a folder that happens to have the name
        found[module] = "unknown" if present else None
        for name in distributions:
            try:
                found[module] = importlib.metadata.version(name) if present else None
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def _ask(path: str, said_by: str, modules: dict[str, list[str]]) -> dict[str, str | None]:
    """Let another interpreter answer ``installed``: it gets the source text of the function above."""
    script = (
        "from __future__ import annotations\nimport importlib.metadata, importlib.util, json, sys\n"
        f"sys.path = [entry for entry in sys.path if entry]\n{inspect.getsource(installed)}\n"
        f"print(json.dumps([list(sys.version_info[:2]), installed({modules!r})]))\n"
    )
    try:
        reply = subprocess.run(
            [path, "-c", script], capture_output=True, text=True, timeout=PROBE_SECONDS, stdin=subprocess.DEVNULL
        )
        version, found = json.loads(reply.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise MissingEnvironment(f"{said_by}: did not say within {PROBE_SECONDS} s what is installed there") from None
    except (OSError, ValueError, IndexError):
        raise MissingEnvironment(f"{said_by}: this is not a working Python interpreter") from None
    if tuple(version) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise MissingEnvironment(f"{said_by}: this is Python {version[0]}.{version[1]}; kmgpu needs {oldest} or newer")
    return found


def visible_gpus(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that a framework may use, in the order of the mask; empty without a driver.

    Numbers count in NVML's order, that of the PCI bus, which is CUDA's only under CUDA_DEVICE_ORDER=PCI_BUS_ID.
    Raises MissingEnvironment where CUDA_VISIBLE_DEVICES names one that NVML does not see: CUDA would silently drop it
    and all that follow it.
    """
    gpus = [uuid for uuid, _ in _nvml_gpus()]
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return tuple(gpus)
    if mask.strip() in ("", "-1", "NoDevFiles"):
        return ()
    chosen = []
    for entry in (part.strip() for part in mask.split(",")):
        if entry.isdecimal() and int(entry) < len(gpus):
            chosen.append(gpus[int(entry)])
        elif entry.startswith("MIG-") and gpus:
            chosen.append(entry)  # a slice of a GPU: only the driver knows whether it exists
        else:
            matches = [uuid for uuid in gpus if entry and uuid.startswith(entry) and not entry.isdecimal()]
            if len(matches) != 1:
                raise MissingEnvironment(
                    f"CUDA_VISIBLE_DEVICES is {mask!r} and names {entry!r}, but NVML sees {_count(len(gpus), 'GPU')}"
                    + (f" (0 to {len(gpus) - 1})" if gpus else "")
                    + "; correct or unset it, or ask for virtual CPU devices with --device-kind cpu"
                )
            chosen.append(matches[0])
    return tuple(chosen)


def resolve_devices(
    device_kind: str = "auto",
    devices: int | None = None,
    device_ids: Sequence[int] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[str, int, tuple[int, ...] | None]:
    """Return the kind ("cpu" or "gpu"), the count and the ids that a run gets, or say why it cannot have them.

    ``auto`` takes the visible GPUs; where there are none, virtual CPU devices. It never falls back to the CPU because
    there are too few. ``devices=None`` is the number of ids, or 1.
    """
    if device_kind not in ("auto", "cpu", "gpu"):
        raise UsageError(f"--device-kind is {device_kind!r}; it is 'auto', 'cpu' or 'gpu'")
    count = devices if devices is not None else len(device_ids) if device_ids else 1
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"--devices is {count!r}; it is a count of at least 1")
    ids = _checked_ids(device_ids, count)
    gpus = () if device_kind == "cpu" else visible_gpus(environ)
    if device_kind == "cpu" or (device_kind == "auto" and not gpus):
        if ids is not None:
            raise (UsageError if device_kind == "cpu" else MissingEnvironment)(
                f"--device-ids {_join(ids)} picks GPUs, and "
                + ("--device-kind is cpu" if device_kind == "cpu" else "none is visible")
                + "; virtual CPU devices have no ids, use --devices alone"
            )
        if count > MOST_VIRTUAL_DEVICES:
            raise UsageError(f"--devices is {count}; at most {MOST_VIRTUAL_DEVICES} virtual CPU devices make sense")
        return "cpu", count, None
    if not gpus:
        raise MissingEnvironment(
            f"--device-kind is gpu, and no GPU is visible{_mask_note(environ)}; make one visible, or ask for virtual "
            "CPU devices with --device-kind cpu"
        )
    seen = f"{_count(len(gpus), 'visible GPU')}{_mask_note(environ)}"
    if count > len(gpus):
        raise MissingEnvironment(
            f"--devices is {count}, found {seen}; ask for fewer, or for virtual CPU devices with --device-kind cpu"
        )
    if ids is not None and max(ids) >= len(gpus):
        raise MissingEnvironment(f"--device-ids is {_join(ids)}, found {seen}; ids run from 0 among the visible ones")
    return "gpu", count, ids


def machine(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what environment.json says: hardware and software of this machine, without its name or its user."""
    import psutil

    return {
        "time": time.time(),
        "kmgpu": __version__,
        "python": platform.python_version(),
        "os": _os_name(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),  # that this process may use, not that the machine has
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": list(os.getloadavg()),
        "gpus": [name for _, name in _nvml_gpus()],
        "gpu_driver": _nvml(lambda nvml: _text(nvml.nvmlSystemGetDriverVersion()), None),
        "variables": {name: environ[name] for name in RECORDED_VARIABLES if name in environ},
    }


def _checked_ids(device_ids: Sequence[int] | None, count: int) -> tuple[int, ...] | None:
    if device_ids is None:
        return None
    ids = tuple(device_ids)
    if not ids or any(isinstance(index, bool) or not isinstance(index, int) or index < 0 for index in ids):
        raise UsageError(f"--device-ids is {_join(ids)!r}; it is a list of whole numbers from 0, such as 0,1")
    if len(set(ids)) < len(ids):
        raise UsageError(f"--device-ids is {_join(ids)}, which names a device twice")
    if len(ids) != count:
        raise UsageError(f"--devices is {count}, but --device-ids names {len(ids)} ({_join(ids)}); leave one out")
    return ids


def _nvml_gpus() -> list[tuple[str, str]]:
    """UUID and name of every GPU of the machine, in NVML's order (that of the PCI bus)."""

    def ask(nvml: Any) -> list[tuple[str, str]]:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [(_text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))) for handle in handles]

    return _nvml(ask, [])


def _nvml(ask: Any, otherwise: Any) -> Any:
    """Return ``ask(pynvml)``, or ``otherwise`` where there is no driver: then there are no GPUs, which is no error."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library, no driver, no permission: each has its own class
        return otherwise
    try:
        return ask(pynvml)
    except pynvml.NVMLError:
        return otherwise
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _count(number: int, noun: str) -> str:
    return f"no {noun}s" if number == 0 else f"{number} {noun}" + ("s" if number > 1 else "")


def _join(ids: Sequence[Any]) -> str:
    return ",".join(map(str, ids))


def _mask_note(environ: Mapping[str, str]) -> str:
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    return "" if mask is None else f" (CUDA_VISIBLE_DEVICES is {mask!r})"
