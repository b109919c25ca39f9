"""A network between a command and its scheduler that goes wrong in mid-stream: the same bits, or a run to resume."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dkgp.data import open_model
from dkgp.errors import ExitCode
from tests.engine.helpers import Bits, ManualCluster, Problem, train_command, wait_for_rounds
from tests.engine.rough_wire import RoughWire, Trouble

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quiet_dask")]

StartProcess = Callable[..., subprocess.Popen[str]]
# A round takes some hundredths of a second here, and by default a quarter of an hour is waited for one.
DEADLINE_SECONDS = 15

TROUBLES = {
    "reset at once": Trouble("reset"),
    "reset in mid-message": Trouble("reset", passing_bytes=333),
    "reset once": Trouble("reset", passing_bytes=5000, connections=2),
    "truncated at once": Trouble("truncate"),
    "truncated in mid-message": Trouble("truncate", passing_bytes=1234),
    "truncated once": Trouble("truncate", passing_bytes=77, connections=2),
    "silent": Trouble("silence"),
    "delayed": Trouble("delay", seconds=0.05),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_rough_wire_to_the_scheduler(
    name: str,
    problem: Problem,
    reference: Bits,
    manual_cluster: Callable[..., ManualCluster],
    start_process: StartProcess,
    tmp_path: Path,
) -> None:
    cluster = manual_cluster(1)
    address = urlsplit(json.loads(Path(cluster.scheduler_file).read_text())["address"])
    assert address.hostname is not None
    assert address.port is not None
    with RoughWire((address.hostname, address.port)) as wire:
        options = ("--scheduler", f"tcp://127.0.0.1:{wire.port}", "--checkpoint-every", 0.02)
        command = train_command(problem, tmp_path, *options, "--round-deadline", DEADLINE_SECONDS)
        process = start_process(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for_rounds(process, tmp_path / "run.jsonl", 10)
        wire.begin(TROUBLES[name])
        began = time.monotonic()
        stdout, stderr = process.communicate(timeout=150)
        assert wire.met > 0
    seconds = time.monotonic() - began
    print(f"\n{name}: exit code {process.returncode} after {seconds:.1f} s")
    assert "Traceback" not in stderr, stderr
    if process.returncode != 0:
        assert process.returncode == ExitCode.CLUSTER_LOST, stderr
        assert "resume" in json.loads(stdout)["error"]["message"]
        assert not (tmp_path / "model.zarr").exists()
        resumed = start_process(
            *train_command(problem, tmp_path, "--resume", "--scheduler-file", cluster.scheduler_file),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        again, complaint = resumed.communicate(timeout=120)
        assert resumed.returncode == 0, complaint
        assert json.loads(again)["resumed"] is True
    assert open_model(tmp_path / "model.zarr").alpha.tobytes() == reference[0]
    # A wire that is slow is no fault.
    assert name != "delayed" or process.returncode == 0
