"""A TCP proxy of one worker's way to the scheduler, which can be cut: a network that goes away in mid-stream."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

_PIECE = 1 << 16
# With a linger of no seconds a close is a reset: what was on its way is lost, as with a pulled cable.
_RESET = struct.pack("ii", 1, 0)


class Wire:
    """Passes on what comes to `port` of this machine, to `target` (host, port), until it is cut or closed."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target, self._ends = target, list[socket.socket]()
        self._lock, self._whole = threading.Lock(), True
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Reset all connections, and refuse further ones; how many there were."""
        with self._lock:
            self._whole = False
            ends, self._ends = self._ends, []
        with contextlib.suppress(OSError):  # wakes `accept`, which a close alone leaves waiting
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RD)
            end.close()
        return len(ends) // 2

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                whole = self._whole
                self._ends += [near, far] if whole else []
            if not whole:
                near.close()
                far.close()
                return
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                sink.sendall(piece)
        # An orderly end is passed on; a cut is none.
        if self._whole:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
