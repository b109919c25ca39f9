"""`dkgp warm-up`: compile the code of runs in advance, or in the background during ingestion."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dkgp.commands.recipe import command
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError, StorageError
from dkgp.options import documented
from dkgp.registry import Option

# An ingestion of less processor time does not justify a process. Seconds of the clock pass on a busy machine too.
_BEHIND_SECONDS, _LOOK_SECONDS = 1.0, 0.25


INTO = Option(
    help="Write the compiled code to FOLDER. Processes with DKGP_COMPILED=FOLDER in their environment read it and "
    "never write to it.  [default: this user's cache: NUMBA_CACHE_DIR, or next to dkgp's files]",
    metavar="FOLDER",
    place="write",
)
TARGET = Option(
    help="Processor to compile for: this machine's own, or any with AVX2 and fused multiply-add. With `into`.",
    choices=("host", "x86-64-v3"),
)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(f"{text} is not in the range x>=1.")
    return count


PROCESSES = Option(
    help="Number of processes that compile at the same time.  [default: one per core]", type=_count, metavar="INTEGER"
)


@command(
    """
    Use this command for container images and shared environments, and before you measure times. Otherwise, the first
    run compiles the code that it needs, mostly in the background. Kernel functions of users are compiled in each
    process.
    """,
    "dkgp warm-up",
    "dkgp warm-up --into /opt/dkgp/compiled --target x86-64-v3",
)
@documented
@dataclass(frozen=True)
class WarmUpJob:
    """A folder of compiled code to fill."""

    into: Annotated[str | None, INTO] = None
    target: Annotated[str, TARGET] = "host"
    processes: Annotated[int | None, PROCESSES] = None


def run_warm_up(job: WarmUpJob, reporter: Reporter) -> Document:
    """Compile; return the folder, its processor, and the compile time of each piece in seconds.

    Raises `InputError`: a target without a folder, or a target for another kind of machine. Raises `StorageError`: the
    folder is not writable, or a piece could not be compiled.
    """
    from dkgp.kernels.tiles.code_cache import FILLED_FOLDER, cache_folder
    from dkgp.kernels.tiles.kept_code import DESCRIPTION, VARIABLE, compile_target, require_target, target_environment
    from dkgp.models.warm_up import all_pieces, compile_pieces

    began = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if job.into is None:
        if job.target != "host":
            raise InputError(
                f"`target` {job.target} needs `into`, a folder that other machines read; give it, or leave `target` out"
            )
        environment = dict(os.environ)
        folder = FILLED_FOLDER or cache_folder()
        if folder is None:
            raise StorageError("found no folder for compiled code; set NUMBA_CACHE_DIR to one")
    else:
        require_target(job.target)
        folder = Path(job.into).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / DESCRIPTION).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write to '{folder}': {error.strerror}. Choose another folder") from error
        environment |= {"NUMBA_CACHE_DIR": str(folder), **target_environment(job.target)}
    reporter.note(f"compiling into '{folder}', which takes half a minute to two minutes")
    seconds, failures = compile_pieces(all_pieces(), job.processes, environment)
    if failures:
        piece, reason = next(iter(failures.items()))
        raise StorageError(f"'{piece}' could not be compiled: {reason}. '{folder}' will not be used for it")
    name = compile_target()[0]
    if job.into is not None:
        # A process of the same environment writes the description last: a folder without it is incomplete and not used.
        describe = f"from dkgp.kernels.tiles.code_cache import describe_here; print(describe_here({job.target!r}))"
        text = subprocess.run(
            [sys.executable, "-P", "-c", describe], env=environment, check=True, capture_output=True, text=True
        ).stdout
        (folder / DESCRIPTION).write_text(text)
        name = job.target if job.target != "host" else name
    return {
        "command": "warm-up",
        "folder": str(folder),
        "processor": name,
        "pieces": len(seconds),
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "seconds": time.perf_counter() - began,
        "seconds_by_piece": seconds,
    }


@contextmanager
def behind() -> Iterator[None]:
    """Compile the code of a first run in a separate process while the context is open; import nothing here."""
    process: list[subprocess.Popen[bytes]] = []
    lock, ended = threading.Lock(), threading.Event()
    began = time.process_time()

    def start() -> None:
        while time.process_time() - began < _BEHIND_SECONDS:
            if ended.wait(_LOOK_SECONDS):
                return
        with lock:
            if not ended.is_set():
                process.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-c", "from dkgp.models.warm_up import compile_first_run as f; f()"],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )

    threading.Thread(target=start, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        with lock:
            for helper in process:
                helper.kill()
                helper.wait()
