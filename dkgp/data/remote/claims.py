"""Claims: who may write a store on an object store, where two writers could share one prefix.

A small object in the store, put there under the condition that none is there (or that it is still the one that was
read), names the writer. Whoever takes the place over, to overwrite or to resume, replaces it; from then on every
writer before finds out, because

- a chunk is put under the condition that none is there; whoever finds another one replaces exactly the one looked at
  (by its ETag), and only after it has seen *afterwards* that the claim is still its own;
- the manifest is put likewise, after a look at the claim;
- only the holder of the claim removes anything.

So a writer that was taken over, or that slept through it all, can neither change a chunk that its successor has written
nor commit; it ends with an error. What is left is a removal, which no store makes conditional: a writer that stalls
between its look at the claim and the request to remove, for so long that its successor has written meanwhile, removes
chunks of its successor. That is never silent: the successor's commit, or whoever opens the store, finds them missing.

A local file system has locks instead of claims, see `place_locks`.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from dkgp.data.remote.addresses import is_local, join, normalise_url
from dkgp.data.remote.object_store import call, put, tag_of
from dkgp.data.remote.retries import Attempts, ConflictError, retried
from dkgp.errors import OutputExistsError, StorageError

CLAIM_NAME = "dkgp-claim.json"


@dataclass(frozen=True)
class Claim:
    """The right to write a store; picklable, so that workers may write with copies."""

    url: str  # of the store
    writer: str  # random; empty on a local file system

    @classmethod
    def take(cls, url: str, kind: str, *, over: bool) -> Claim:
        """Claim a place. Check before that it may be written to: who checked at the same time is told here.

        `kind` is the store's, for whoever finds the claim alone; `over` takes the place from whoever has it now.

        Raises `OutputExistsError`: another process has the place, or takes it at the same time. `StorageError`: the
        place cannot be written to.
        """
        address = normalise_url(url)
        if is_local(address):
            return cls(address, "")
        claim = cls(address, secrets.token_hex(16))
        content = json.dumps(
            {
                "kind": kind,
                "writer": claim.writer,
                "host": socket.gethostname(),
                "process": os.getpid(),
                "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
        ).encode()
        target = join(address, CLAIM_NAME)
        before = tag_of(target)
        try:
            if before is None or not over:
                put(target, content, replace=False)
            else:
                put(target, content, exactly=before)
        except (ConflictError, OutputExistsError):
            raise OutputExistsError(
                f"Another process has just begun to write '{address}'. Wait for it, or choose another path."
            ) from None
        return claim

    def require(self) -> None:
        """Make sure that nobody has taken the place over; `StorageError` where somebody has."""
        if self.writer:
            try:
                content = call(join(self.url, CLAIM_NAME), "cat_file", "read")
            except FileNotFoundError:
                content = b""
            self._compare(content)

    async def require_on(self, file_system: Any, root: str) -> None:
        """`require`, within an event loop: with its file system, and the store's path within that."""
        if self.writer:
            name = f"{root.rstrip('/')}/{CLAIM_NAME}"
            try:
                content = await retried(
                    lambda: file_system._cat_file(name), Attempts("read", join(self.url, CLAIM_NAME))
                )
            except FileNotFoundError:
                content = b""
            self._compare(content)

    def is_mine(self) -> bool:
        """True if nobody has taken the place over."""
        try:
            self.require()
        except TakenOverError:
            return False
        return True

    def _compare(self, content: bytes) -> None:
        try:
            writer = str(json.loads(content)["writer"])
        except (ValueError, KeyError, TypeError):
            writer = ""
        if writer != self.writer:
            raise TakenOverError(
                f"Another process has taken over '{self.url}' (it was started to overwrite it or to resume, or the "
                "store was removed). This one stops, and leaves the store to it."
            )


class TakenOverError(StorageError):
    """Another writer holds the place."""
