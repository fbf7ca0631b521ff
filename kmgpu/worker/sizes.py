"""Sizes of batches, and how the devices share them."""

from __future__ import annotations

from collections.abc import Sequence

from kmgpu.data.loader import split


def shares(batch_size: int, devices: int) -> list[int]:
    """Return the rows of each device; every device has all rows of a batch smaller than the devices."""
    parts = split(batch_size, devices)
    return [part.stop - part.start for part in parts] if parts else [batch_size] * devices


def idle_notes(sizes: Sequence[int], devices: int) -> list[str]:
    """Return a line for batches of these sizes with fewer rows than devices, which every device computes whole."""
    for name, size in (("a batch", sizes[0]), ("the last batch of an epoch", sizes[-1])):
        if size < devices:
            idle = ", ".join(str(device) for device in range(size, devices))
            have = f"{size} row{'s' if size > 1 else ''} for {devices} devices"
            return [f"{name} has {have}: it is exact, but devices {idle} have no rows of their own"]
    return []
