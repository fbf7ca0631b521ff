"""Sizes of batches, and how the devices share them."""

from __future__ import annotations

from kmgpu.data.loader import split


def batch_sizes(rows: int, batch_size: int, steps: int | None = None) -> tuple[int, ...]:
    """Return the sizes of the batches of an epoch, each once, in the order in which they come."""
    starts = range(0, rows, batch_size)[:steps]
    return tuple(dict.fromkeys(min(batch_size, rows - start) for start in starts))


def shares(batch_size: int, devices: int) -> list[int]:
    """Return the rows of each device; every device has all rows of a batch smaller than the devices."""
    parts = split(batch_size, devices)
    return [part.stop - part.start for part in parts] if parts else [batch_size] * devices


def idle_notes(rows: int, batch_size: int, steps: int, devices: int) -> list[str]:
    """Return a line for batches with fewer rows than devices, which every device computes whole."""
    last = rows - (rows - 1) // batch_size * batch_size if steps * batch_size >= rows else batch_size
    notes = []
    for name, size in (("a batch", batch_size), ("the last batch of an epoch", last)):
        if size < devices:
            idle = ", ".join(str(device) for device in range(size, devices))
            have = f"{size} row{'s' if size > 1 else ''} for {devices} devices"
            notes.append(f"{name} has {have}: it is exact, but devices {idle} have no rows of their own")
            break
    return notes
