"""A slow link: what comes to its port is passed on to another one of this machine, late and a byte after the other.

A process of its own does so, so that it takes no turn of the one that is measured.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from queue import Queue
from typing import Self, TypeAlias

PIECE_BYTES = 1 << 16
# Pieces of a connection on their way, at most: more than a link's bandwidth times its latency.
MOST_PIECES = 64
STOP_SECONDS = 5.0

Address: TypeAlias = tuple[str, int]


class SlowLink(ExitStack):
    """Passes on what comes to `port` of this machine, to `target` and back; a context manager.

    `latency_seconds` is what a byte takes one way, `bytes_per_second` what all connections together pass in each
    direction.
    """

    def __init__(self, target: Address, latency_seconds: float, bytes_per_second: float) -> None:
        super().__init__()
        self._arguments = (target, latency_seconds, bytes_per_second)
        self.port = 0

    def __enter__(self) -> Self:
        start = multiprocessing.get_context("spawn")
        near, far = start.Pipe()
        process = start.Process(target=_serve, args=(far, *self._arguments), daemon=True)
        process.start()
        far.close()
        self.callback(process.join, STOP_SECONDS)
        self.callback(near.close)
        self.port = int(near.recv())
        return self


class Lane:
    """One direction of a link, which its connections share."""

    def __init__(self, latency_seconds: float, bytes_per_second: float) -> None:
        self._latency, self._rate = latency_seconds, bytes_per_second
        self._free_at, self._lock = 0.0, threading.Lock()

    def arrival(self, count: int) -> float:
        """Moment at which so many bytes, sent now, will have arrived, by `time.perf_counter`."""
        with self._lock:
            self._free_at = max(time.perf_counter(), self._free_at) + count / self._rate
            return self._free_at + self._latency


def _serve(end: Connection, target: Address, latency_seconds: float, bytes_per_second: float) -> None:
    out, back = (Lane(latency_seconds, bytes_per_second) for _ in range(2))
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=_accept, args=(door, target, out, back), daemon=True).start()
        end.send(door.getsockname()[1])
        with suppress(EOFError, OSError, KeyboardInterrupt):
            end.recv()  # until nobody holds the other end


def _accept(door: socket.socket, target: Address, out: Lane, back: Lane) -> None:
    with suppress(OSError):
        while True:
            near, _ = door.accept()
            far = socket.create_connection(target)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink, lane in ((near, far, out), (far, near, back)):
                waiting: Queue[tuple[float, bytes]] = Queue(MOST_PIECES)
                threading.Thread(target=_take, args=(source, lane, waiting), daemon=True).start()
                threading.Thread(target=_hand_over, args=(sink, waiting), daemon=True).start()


def _take(source: socket.socket, lane: Lane, waiting: Queue[tuple[float, bytes]]) -> None:
    piece = b"-"
    while piece:
        try:
            piece = source.recv(PIECE_BYTES)
        except OSError:
            piece = b""
        waiting.put((lane.arrival(len(piece)), piece))


def _hand_over(sink: socket.socket, waiting: Queue[tuple[float, bytes]]) -> None:
    piece, is_open = b"-", True
    while piece:
        arrival, piece = waiting.get()
        time.sleep(max(0.0, arrival - time.perf_counter()))
        try:
            if is_open and piece:
                sink.sendall(piece)
        except OSError:  # the rest is taken off the queue all the same
            is_open = False
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
