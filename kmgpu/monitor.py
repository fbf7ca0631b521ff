"""Monitor a run from outside: once a second a record of its processes and its GPUs, in monitor.jsonl.

Processes are read from /proc, GPUs through NVML (nvidia-ml-py). What a device or its driver does not tell is null.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kmgpu.errors import first_line
from kmgpu.rundir import EventWriter

SECONDS = 1.0  # between two records
FAMILY_RECORDS = 5  # records between two looks for new descendants: 2 ms for a process with 150 threads
REASONS = {  # nvml.h, nvmlClocksEventReasons: why the clocks are not higher
    0x1: "idle", 0x2: "applications clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake", 0x100: "display clock",
}  # fmt: skip


class Monitor:
    """Takes a record of the processes and GPUs of a run each second in which it is asked, and writes it down."""

    def __init__(self, path: Path, pids: Mapping[int, int], gpus: Sequence[str] = ()):
        """``pids`` are by process of the run, ``gpus`` are UUIDs in the run's order."""
        self._writer = EventWriter(path)
        self._processes = [Process(process, pid) for process, pid in sorted(pids.items())]
        self._devices = Gpus(gpus) if gpus else None
        self._next = time.monotonic() + SECONDS

    def take(self) -> dict[str, Any] | None:
        """Return a new record, or None if the last one is younger than a second.

        If it cannot be written there is none any more; the last record then says so, as it does of a sink.
        """
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + SECONDS
        try:
            return self._writer.write(
                "monitor",
                load_average=os.getloadavg()[0],
                processes=[process.read() for process in self._processes],
                devices=self._devices.read() if self._devices else [],
            )
        except OSError as error:  # a full disk
            self._next = math.inf
            return {"event": "sink_failed", "time": time.time(), "sink": "monitor", "reason": first_line(error)}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()
        if self._devices:
            self._devices.close()


class Process:
    """One process of a run with its descendants, such as those that load data."""

    def __init__(self, process: int, pid: int):
        self._process, self._pid = process, pid
        self._family, self._reads = [pid], 0
        self._clock = time.monotonic()
        self._cpu_seconds = self._usage()[0]

    def read(self) -> dict[str, Any]:
        """Return CPU percent since the last call (100 is one core) and resident bytes; both 0 when it has ended."""
        cpu_seconds, rss_bytes = self._usage()
        now = time.monotonic()
        used = sum(max(0.0, total - self._cpu_seconds.get(pid, 0.0)) for pid, total in cpu_seconds.items())
        percent = 100 * used / (now - self._clock)
        self._clock, self._cpu_seconds = now, cpu_seconds
        return {
            "process": self._process, "pid": self._pid, "cpu_percent": round(percent, 1), "rss_bytes": rss_bytes,
        }  # fmt: skip

    def _usage(self) -> tuple[dict[int, float], int]:
        """Return the CPU seconds so far of each process of the family, and the resident bytes of all."""
        import psutil

        if self._reads % FAMILY_RECORDS == 0:
            self._family = family(self._pid)
        self._reads += 1
        seconds, rss_bytes = {}, 0
        for pid in self._family:
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                process = psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    seconds[pid] = times.user + times.system
                    rss_bytes += process.memory_info().rss
        return seconds, rss_bytes


def family(pid: int) -> list[int]:
    """Return a process and its descendants, from the kernel's own lists: psutil would read all of /proc for them."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended, or one of its threads has
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    return [pid, *(relative for child in children for relative in family(child))]


class Gpus:
    """Some GPUs, by their UUIDs, read through NVML. Unverified on GPU."""

    def __init__(self, uuids: Sequence[str]):
        self._uuids = list(uuids)
        self._nvml: Any = None
        self._handles: list[Any] = []
        with contextlib.suppress(Exception):  # no driver, a GPU that fell off the bus: each has its own class
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self._uuids]

    def read(self) -> list[dict[str, Any]]:
        """Return one record for each GPU; empty if NVML does not know them."""
        return [self._record(*device) for device in enumerate(self._handles)]

    def _record(self, index: int, handle: Any) -> dict[str, Any]:
        nvml = self._nvml

        def ask(question: Callable[[], Any]) -> Any:
            try:
                return question()
            except nvml.NVMLError:  # this model, a slice of it, or a container does not tell
                return None

        utilization = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return {
            "device": index,
            "uuid": self._uuids[index],
            "utilization_percent": utilization and utilization.gpu,
            "memory_used_bytes": memory and memory.used,
            "memory_total_bytes": memory and memory.total,
            "temperature_celsius": ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "power_watts": ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "sm_clock_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_clock_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "throttle_reasons": None if reasons is None else throttling(reasons),
            "pids": ask(lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]),
        }

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()


def throttling(reasons: int) -> list[str]:
    """Return the names of the bits of NVML's reasons, those that are not known as numbers."""
    bits = [1 << position for position in range(reasons.bit_length()) if reasons >> position & 1]
    return [REASONS.get(bit, hex(bit)) for bit in bits]
