"""The monitor reads real processes, and GPUs as NVML tells of them: here a stand-in with invented answers."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from kmgpu import monitor
from kmgpu.rundir import RunDir

BUSY = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass']); sys.stdin.read()"


class NVMLError(Exception):
    pass


def fake_nvml(**replaced):
    """A pynvml of one GPU at work; units and signatures are those of nvidia-ml-py, the numbers are invented."""

    def answers(value):
        def answer(handle, *kind):
            assert handle == "handle of GPU-1"
            if isinstance(value, Exception):
                raise value
            return value[kind[0]] if isinstance(value, dict) else value

        return answer

    values = {
        "UtilizationRates": types.SimpleNamespace(gpu=87, memory=40),
        "MemoryInfo": types.SimpleNamespace(used=10 * 2**30, total=80 * 2**30, free=70 * 2**30),
        "CurrentClocksEventReasons": 0x4 | 0x20,
        "Temperature": {0: 61},
        "PowerUsage": 312_400,
        "ClockInfo": {1: 1980, 2: 2619},
        "ComputeRunningProcesses": [types.SimpleNamespace(pid=7, usedGpuMemory=1)],
        **replaced,
    }
    module = types.ModuleType("pynvml")
    module.calls = []
    module.NVMLError, module.NVML_TEMPERATURE_GPU = NVMLError, 0
    module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM = 1, 2
    module.nvmlInit = lambda: module.calls.append("init")
    module.nvmlShutdown = lambda: module.calls.append("shutdown")
    module.nvmlDeviceGetHandleByUUID = lambda uuid: f"handle of {uuid}"
    for name, value in values.items():
        setattr(module, f"nvmlDeviceGet{name}", answers(value))
    return module


def read_gpu(monkeypatch, **replaced):
    nvml = fake_nvml(**replaced)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = monitor.Gpus(["GPU-1"])
    found = gpus.read()
    gpus.close()
    assert nvml.calls == ["init", "shutdown"]
    return found


def test_a_gpu_is_read_in_plain_units(monkeypatch):
    assert read_gpu(monkeypatch) == [
        {
            "device": 0, "uuid": "GPU-1", "utilization_percent": 87, "memory_used_bytes": 10 * 2**30,
            "memory_total_bytes": 80 * 2**30, "temperature_celsius": 61, "power_watts": 312.4, "sm_clock_mhz": 1980,
            "memory_clock_mhz": 2619, "throttle_reasons": ["power cap", "software thermal slowdown"], "pids": [7],
        }
    ]  # fmt: skip


def test_what_a_gpu_does_not_tell_is_null_and_the_rest_is_there(monkeypatch):
    names = ("UtilizationRates", "CurrentClocksEventReasons", "PowerUsage", "ClockInfo", "ComputeRunningProcesses")
    (found,) = read_gpu(monkeypatch, **dict.fromkeys(names, NVMLError("Not Supported")))
    assert [name for name, value in found.items() if value is None] == [
        "utilization_percent", "power_watts", "sm_clock_mhz", "memory_clock_mhz", "throttle_reasons", "pids",
    ]  # fmt: skip
    assert found["memory_used_bytes"] == 10 * 2**30


def test_an_idle_gpu_uses_0_percent_and_not_null(monkeypatch):
    idle = types.SimpleNamespace(gpu=0, memory=0)
    assert read_gpu(monkeypatch, UtilizationRates=idle)[0]["utilization_percent"] == 0


def test_without_a_driver_there_are_no_devices(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = monitor.Gpus(["GPU-1"])
    assert gpus.read() == []
    gpus.close()


def test_reasons_are_those_of_the_installed_nvml():
    pynvml = pytest.importorskip("pynvml")
    known = {value for name, value in vars(pynvml).items() if name.startswith("nvmlClocksEventReason")}
    assert set(monitor.REASONS) == {value for value in known if value.bit_count() == 1}
    assert monitor.throttling(0x1 | 0x8000) == ["idle", "0x8000"]


@pytest.fixture
def family():
    """A process that does nothing, with a child that is busy; the child is the one killed first."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while len(monitor.family(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    yield process
    for pid in reversed(monitor.family(process.pid)):
        subprocess.run(["kill", "-9", str(pid)], check=False)
    process.communicate()


def test_a_process_is_read_with_its_descendants(family):
    reader = monitor.Process(1, family.pid)
    for _ in range(100):  # a busy machine may give the child no time for long
        time.sleep(0.2)
        busy = reader.read()
        if busy["cpu_percent"] > 5 and busy["rss_bytes"] > 10 * 2**20:
            break
    assert (busy["process"], busy["pid"]) == (1, family.pid) and busy["rss_bytes"] > 10 * 2**20
    assert busy["cpu_percent"] > 5, "the child does nothing but count"
    for pid in reversed(monitor.family(family.pid)):
        subprocess.run(["kill", "-9", str(pid)], check=True)
    family.communicate()
    for _ in range(100):  # the system may still be taking down what was killed
        gone = reader.read()
        if gone["cpu_percent"] == gone["rss_bytes"] == 0:
            break
        time.sleep(0.2)
    assert gone == {"process": 1, "pid": family.pid, "cpu_percent": 0.0, "rss_bytes": 0}


def test_a_record_is_written_once_a_second(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(monitor.time, "monotonic", lambda: clock[0])
    rundir = RunDir(tmp_path)
    taken = monitor.Monitor(rundir.monitor_file, {0: 1})
    records = []
    for now in (100.0, 100.5, 101.0, 101.9, 102.0, 107.0):
        clock[0] = now
        records.append(taken.take())
    taken.close()
    assert [record is not None for record in records] == [False, False, True, False, True, True]
    assert rundir.monitored() == [record for record in records if record]
    assert records[-1]["event"] == "monitor" and records[-1]["devices"] == []


def test_a_monitor_that_cannot_write_says_so_once_and_is_silent(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(monitor.time, "monotonic", lambda: clock[0])
    taken = monitor.Monitor(Path("/dev/full"), {})
    clock[0] = 102.0
    record = taken.take()
    assert (record["event"], record["sink"]) == ("sink_failed", "monitor") and "No space left" in record["reason"]
    clock[0] = 200.0
    assert taken.take() is None
    taken.close()
