"""Options that several commands share, and the fields that all training jobs share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from dkgp.cluster import ClusterOptions
from dkgp.data.remote.storage import exists
from dkgp.options import Checked, Part
from dkgp.registry import FURTHER, Group, Option, byte_count

FILES = Group("Checkpoints, records and limits", place=2)

DATASET = Option(place="read", reads="dataset", argument=True)
MODEL_OUT = Option(help="Store to write the model to.", metavar="STORE", place="write")
HYPER = Option(
    help="Hyperparameters, as `dkgp tune` writes them.",
    metavar="FILE",
    place="read",
    lacking="Tune hyperparameters first with dkgp tune DATASET --out hyper.json, then give that file.",
)
BY_REFERENCE = Option(help="Store the path of DATASET in the model instead of a copy of its features.", group=FURTHER)
AS_IN_THE_PAPER = Option(
    help="Use the settings of the method's paper, which are listed below. Options that you set override them.",
    type=bool,
    group=FURTHER,
)
MAX_PASSES = Option(
    help="Stop after this number of passes over the kernel matrix. One pass evaluates each of its n² entries once.",
    above=0,
)
MAX_SECONDS = Option(help="Stop after this number of seconds.", above=0)
MEMORY_LIMIT = Option(
    help="Refuse to start if the forecast memory exceeds this size, such as 4GiB.  [default: available memory]",
    type=byte_count,
    spellings=("--memory-limit",),
    metavar="SIZE",
    least=1,
    group=FILES,
)
CHECKPOINT = Option(
    help="Folder for checkpoints, which dkgp saves regularly and on Ctrl-C.  [default: OUT.checkpoint]",
    metavar="DIR",
    place="write",
    group=FILES,
)
CHECKPOINT_SECONDS = Option(
    help="Time between checkpoints.", spellings=("--checkpoint-every",), metavar="SECONDS", least=0, group=FILES
)
RESUME = Option(help="Continue from the last checkpoint. The result is bit-identical to that of an uninterrupted run.")
PLOT = Option(help="Plot the convergence of the run into a .png, .pdf or .svg file.", metavar="FILE", place="write")
LOG_JSON = Option(help="Write one line of JSON per round to this file.", metavar="FILE", place="write", group=FILES)
OVERWRITE = Option(help="Replace existing outputs.")


@dataclass(frozen=True, kw_only=True)
class TrainingJob(Checked):
    """The fields that the jobs of train, sparse and classify share: limits, checkpoints, records and the cluster.

    Each of these jobs also has a `dataset` and an `out`, at its own positions among the arguments.
    """

    memory_limit_bytes: Annotated[int | None, MEMORY_LIMIT] = None
    checkpoint: Annotated[str | None, CHECKPOINT] = None
    checkpoint_seconds: Annotated[float, CHECKPOINT_SECONDS] = 30.0
    resume: Annotated[bool, RESUME] = False
    plot: Annotated[str | None, PLOT] = None
    log_json: Annotated[str | None, LOG_JSON] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    @property
    def checkpoint_url(self) -> str:
        """The URL of the checkpoints."""
        out: str = self.out  # type: ignore[attr-defined]  # each job has `out` at its own argument position
        return self.checkpoint or f"{out.rstrip('/')}.checkpoint"

    @property
    def begun(self) -> bool:
        """True if an earlier run left a checkpoint or its model."""
        out: str = self.out  # type: ignore[attr-defined]
        return exists(out) or exists(self.checkpoint_url)
