"""deploy/slurm: the scripts are what dkgp writes, the settings are settings that exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.config
import pytest
import yaml

import dkgp
from dkgp.cluster.configuration import configured_options
from dkgp.cluster.starters.jobqueue import job_arguments
from dkgp.commands.batch import batch_script

FOLDER = Path(dkgp.__file__).resolve().parents[1] / "deploy" / "slurm"
TRAIN = ["dkgp", "train", "train.zarr", "--out", "model.zarr", "--hyper", "hyper.json"]
SCRIPTS = {
    "train-one-node.sbatch": {"setup": "./environment.sh"},
    "train-several-nodes.sbatch": {"nodes": "4", "setup": "./environment.sh"},
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_what_dkgp_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "python")
    assert (FOLDER / name).read_text() == batch_script(TRAIN, name="dkgp-train", settings=SCRIPTS[name], resume=False)


@pytest.mark.parametrize("name", [*SCRIPTS, "environment.sh"])
def test_bash_can_read_them(name: str) -> None:
    checked = subprocess.run(["bash", "-n", str(FOLDER / name)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_jobqueue_yaml_holds_keys_that_dask_jobqueue_knows() -> None:
    dask_jobqueue = pytest.importorskip("dask_jobqueue")
    own = yaml.safe_load((Path(dask_jobqueue.__file__).parent / "jobqueue.yaml").read_text())["jobqueue"]["slurm"]
    ours: dict[str, Any] = yaml.safe_load((FOLDER / "jobqueue.yaml").read_text())
    assert list(ours) == ["jobqueue"]
    assert list(ours["jobqueue"]) == ["slurm"]
    assert ours["jobqueue"]["slurm"].keys() <= own.keys()


def test_the_two_files_together_say_all_that_a_cluster_needs() -> None:
    pytest.importorskip("dask_jobqueue")
    files = [yaml.safe_load((FOLDER / name).read_text()) for name in ("jobqueue.yaml", "dkgp.yaml")]
    with dask.config.set(dask.config.merge(dask.config.config, *files)):
        options = configured_options({})  # refuses keys that it does not know
        arguments = job_arguments(options)  # refuses sizes that nobody tells
    assert (options.kind, options.workers, options.worker_wait_seconds) == ("slurm", 4, 1800.0)
    assert any(argument.startswith("--lifetime") for argument in arguments["worker_extra_args"])
