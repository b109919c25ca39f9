"""A TCP proxy whose connections are reset, delayed, cut short in mid-message or fall silent, on command."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Literal

_PIECE = 1 << 12
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Trouble:
    """Fault of the connections, old and new.

    "reset" and "truncate" let so many more bytes pass, in either direction, and end the connection then: by a reset,
    or in good order in the middle of a message. "silence" lets nothing pass from then on, and ends nothing. "delay"
    has every piece wait for so many seconds. `connections` is how many meet the trouble; None for all.
    """

    kind: Literal["reset", "truncate", "silence", "delay"]
    passing_bytes: int = 0
    seconds: float = 0.0
    connections: int | None = None


class RoughWire:
    """Passes on what comes to `port` of this machine, to `target` (host, port); a context manager."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target, self._trouble = target, None
        self._ends: list[socket.socket] = []
        self._lock, self.met = threading.Lock(), 0
        self._closed = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    _trouble: Trouble | None

    def __enter__(self) -> RoughWire:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            _end(end, reset=True)
        for thread in self._threads:
            thread.join(10.0)

    def begin(self, trouble: Trouble) -> None:
        """Have it go wrong from now on."""
        with self._lock:
            self._trouble = trouble

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._door.accept()
                far = socket.create_connection(self._target)
            except OSError:
                continue
            with self._lock:
                self._ends += [near, far]
                budget = [None]
                pairs = [threading.Thread(target=self._pass_on, args=(a, b, budget), daemon=True) for a, b in
                         ((near, far), (far, near))]  # fmt: skip
                self._threads += pairs
            for thread in pairs:
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, budget: list[int | None]) -> None:
        """One direction; `budget` are the bytes that the connection may still pass, once it has met the trouble."""
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                trouble = self._meets(budget)
                if trouble is not None:
                    if trouble.kind == "delay":
                        self._closed.wait(trouble.seconds)
                    elif trouble.kind == "silence":
                        self._closed.wait()
                        return
                    else:
                        with self._lock:
                            passing = min(len(piece), budget[0] or 0)
                            budget[0] = (budget[0] or 0) - passing
                        sink.sendall(piece[:passing])
                        if budget[0] == 0:
                            time.sleep(0.01)
                            for end in (source, sink):
                                _end(end, reset=trouble.kind == "reset")
                            return
                        continue
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _meets(self, budget: list[int | None]) -> Trouble | None:
        with self._lock:
            if self._trouble is None:
                return None
            if budget[0] is None:
                if self._trouble.connections is not None and self.met >= self._trouble.connections:
                    return None
                self.met += 1
                budget[0] = self._trouble.passing_bytes
            return self._trouble


def _end(end: socket.socket, *, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.shutdown(socket.SHUT_RD)
        else:
            end.shutdown(socket.SHUT_RDWR)
    end.close()
