"""Options that several commands share, and the fields that all training jobs share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from dkgp.cluster import ClusterOptions
from dkgp.data.remote.storage import exists
from dkgp.options import Part, check_ranges
from dkgp.registry import FURTHER, Group, Option, byte_count

FILES = Group("Checkpoints, records and limits", place=2)

DATASET = Option(place="read", argument=True)
MODEL_OUT = Option(help="Where the model goes.", metavar="STORE", place="write")
HYPER = Option(
    help="Hyperparameters, as `dkgp tune` writes them.",
    metavar="FILE",
    place="read",
    lacking="Find hyperparameters first: dkgp tune DATASET --out hyper.json; then name that file here.",
)
BY_REFERENCE = Option(help="Let the model refer to DATASET instead of copying its inputs.", group=FURTHER)
AS_IN_THE_PAPER = Option(
    help="Take the settings that the method's paper prints, listed below in this help; flags beside it win.",
    type=bool,
    group=FURTHER,
)
MAX_PASSES = Option(help="Stop after so many passes over the kernel's columns.", above=0)
MAX_SECONDS = Option(help="Stop after so many seconds.", above=0)
MEMORY_LIMIT = Option(
    help="Refuse to start where more is projected, such as 4GiB.  [default: available memory]",
    type=byte_count,
    spellings=("--memory-limit",),
    metavar="SIZE",
    least=1,
    group=FILES,
)
CHECKPOINT = Option(
    help="Where to save the state every so often and on Ctrl-C.  [default: OUT.checkpoint]",
    metavar="DIR",
    place="write",
    group=FILES,
)
CHECKPOINT_SECONDS = Option(
    help="How often.", spellings=("--checkpoint-every",), metavar="SECONDS", least=0, group=FILES
)
RESUME = Option(help="Go on from the checkpoint, to the bit-same result.")
PLOT = Option(help="Draw the course of the run into a .png, .pdf or .svg.", metavar="FILE", place="write")
LOG_JSON = Option(help="Write one JSON line for each round.", metavar="FILE", place="write", group=FILES)
OVERWRITE = Option(help="Replace outputs that exist.")


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
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

    def __post_init__(self) -> None:
        check_ranges(self)

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
