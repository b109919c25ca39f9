"""The audit log of a service: who asked for what, from where, when, and what came of it; one JSON object a line.

`FOLDER/audit.jsonl`, its owner's alone to read; beyond `LARGEST_BYTES` it becomes `audit.1.jsonl`, that one
`audit.2.jsonl`, and so on, and the oldest goes. No line ever holds a token: of a request it has the call
and the job's id, never its address, headers or body.

==========  ==========================================================================================================
"time"      ISO 8601, UTC
"who"       the token's name; null where none was shown that is known
"scope"     of that token
"from"      the other side's address (behind a proxy, the proxy's)
"what"      "POST /v1/jobs/{job_id}/cancel"; "other" for what is no call of the service; or a
            command's words, such as "token revoke"
"job"       the job's id, where there is one
"status"    of the answer
"left_out"  how many requests before this line were too many of one token, or of strangers, to write down
==========  ==========================================================================================================
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

from dkgp.service.queue.events import now_text

log = logging.getLogger("dkgp.service")

AUDIT_NAME = "audit.jsonl"
LARGEST_BYTES = 8 * 2**20
KEPT_FILES = 4


class AuditLog:
    """Appends lines; safe between threads, and a command may append while a service does."""

    def __init__(self, folder: Path, *, largest_bytes: int = LARGEST_BYTES, kept_files: int = KEPT_FILES) -> None:
        self.path = folder / AUDIT_NAME
        self.lost = 0
        self._largest_bytes, self._kept_files = largest_bytes, kept_files
        self._turn = threading.Lock()

    def write(self, what: str, **content: Any) -> None:
        """Append one line. Where that fails (a full disk) it is counted in `lost`, and the service goes on."""
        line = json.dumps({"time": now_text(), "what": what, **content}).encode() + b"\n"
        with self._turn:
            try:
                self._rotate(len(line))
                handle = os.open(
                    self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
                )
                try:
                    os.fchmod(handle, 0o600)
                    os.write(handle, line)
                finally:
                    os.close(handle)
            except OSError as error:
                self.lost += 1
                if self.lost == 1:
                    log.error("the audit log '%s' cannot be written: %s", self.path, error)

    def _rotate(self, n_bytes: int) -> None:
        try:
            if self.path.lstat().st_size + n_bytes <= self._largest_bytes:
                return
        except FileNotFoundError:
            return
        for number in range(self._kept_files - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._older(number), self._older(number + 1))
        os.replace(self.path, self._older(1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"audit.{number}.jsonl")
