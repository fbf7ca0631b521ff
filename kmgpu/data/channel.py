"""A channel from the process that reads a stream to the others: each gets its own rows of every batch.

Messages over a Unix socket in a private directory: JSON that says what comes, then the bytes of the arrays.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from kmgpu.data import trees
from kmgpu.errors import RunFailed


class PeerLost(RunFailed):
    """The process at the other end went away, or said that it failed: it is the one to look at."""


def listen(path: Path, peers: int) -> list[Connection]:
    """Return connections to processes 1 to ``peers``, once all of them are there."""
    with _address(path) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(peers)
        joined = [Connection(listener.accept()[0].detach()) for _ in range(peers)]
    numbers = [int(connection.recv_bytes()) for connection in joined]
    return [joined[numbers.index(number)] for number in range(1, peers + 1)]


def connect(path: Path, process: int) -> Connection:
    """Return the connection of ``process`` to process 0, which may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:  # whoever started the processes ends this one if process 0 dies
        link = socket.socket(socket.AF_UNIX)
        try:
            with _address(path) as address:
                link.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            link.close()
            time.sleep(0.02)
            continue
        connection = Connection(link.detach())
        connection.send_bytes(str(process).encode())
        return connection


def send(connection: Connection, kind: str, record: Any = None, arrays: Sequence[Any] = ()) -> None:
    """Send a message: its kind, a record that JSON holds, and trees of arrays."""
    described = [trees.encode(tree, lambda array: [array.dtype.str, array.shape]) for tree in arrays]
    with _lost():
        connection.send_bytes(json.dumps([kind, record, described]).encode())
        for tree in arrays:
            for _, array in trees.leaves(tree, ""):
                connection.send_bytes(_bytes(np.ascontiguousarray(array)))


def receive(connection: Connection) -> tuple[str, Any, list[Any]]:
    """Return the next message; raises PeerLost if there is none."""
    with _lost():
        kind, record, described = json.loads(connection.recv_bytes())

        def array(leaf: list[Any]) -> np.ndarray:
            found = np.empty(leaf[1], leaf[0])
            connection.recv_bytes_into(_bytes(found))
            return found

        return kind, record, [trees.decode(tree, array) for tree in described]


def _bytes(array: np.ndarray) -> memoryview:
    """Return the memory of a contiguous array."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise PeerLost("the connection between the process that reads the data and another is lost") from error


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Give a path to a socket that is short enough for one, 107 bytes, however deep the directory is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
