"""Sizes of batches, and how the devices share them."""

from __future__ import annotations

from collections.abc import Sequence

from kmgpu.data.feed import Feed
from kmgpu.data.loader import split
from kmgpu.errors import counted


def shares(batch_size: int, devices: int) -> list[int]:
    """Return the rows of each device; every device has all rows of a batch smaller than the devices."""
    parts = split(batch_size, devices)
    return [part.stop - part.start for part in parts] if parts else [batch_size] * devices


def expected_sizes(feed: Feed) -> tuple[int, ...]:
    """Return the rows of the updates to come; a stream, of which only the first is known, may have a shorter one."""
    return (*feed.sizes, feed.sizes[0] - 1) if feed.stream and feed.sizes[0] > 1 else feed.sizes


def idle_notes(sizes: Sequence[int], devices: int) -> list[str]:
    """Return a line for batches of these sizes with fewer rows than devices, which every device computes whole."""
    for name, size in (("a batch", sizes[0]), ("the last batch of an epoch", sizes[-1])):
        if size < devices:
            idle = [str(device) for device in range(size, devices)]
            without = f"device {idle[0]} has" if len(idle) == 1 else f"devices {', '.join(idle)} have"
            have = f"{counted(size, 'row')} for {devices} devices"
            own = f"no rows of {'its' if len(idle) == 1 else 'their'} own"
            return [f"{name} has {have}: it is exact, but {without} {own}"]
    return []
