"""A network between a command and its scheduler that goes wrong in mid-stream: the same bits, or a run to resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dkgp.errors import ExitCode
from tests.engine.helpers import ManualCluster, TrainCommand
from tests.engine.rough_wire import RoughWire, Trouble

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quiet_dask")]

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
    name: str, command: TrainCommand, manual_cluster: Callable[..., ManualCluster]
) -> None:
    cluster = manual_cluster(1)
    address = urlsplit(json.loads(Path(cluster.scheduler_file).read_text())["address"])
    assert address.hostname is not None
    assert address.port is not None
    with RoughWire((address.hostname, address.port)) as wire:
        options = ("--scheduler", f"tcp://127.0.0.1:{wire.port}", "--checkpoint-every", 0.02)
        process = command.start(*options, "--round-deadline", DEADLINE_SECONDS, rounds=10)
        wire.begin(TROUBLES[name])
        # A wire that is slow is no fault.
        if process.wait(timeout=240) == 0 or name == "delayed":
            assert process.returncode == 0
            assert "Traceback" not in process.communicate()[1]
            command.require_model()
        else:
            assert "resume" in command.require_error(process, ExitCode.CLUSTER_LOST)["message"]
            command.require_resumed("--scheduler-file", cluster.scheduler_file)
        assert wire.met > 0
    print(f"\n{name}: exit code {process.returncode}")
