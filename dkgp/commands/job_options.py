"""Options that the jobs of several commands have."""

from __future__ import annotations

from dkgp.registry import Group, Option, byte_count

__all__ = [
    "AS_IN_THE_PAPER",
    "BY_REFERENCE",
    "CHECKPOINT",
    "CHECKPOINT_SECONDS",
    "DATASET",
    "HYPER",
    "LOG_JSON",
    "MAX_PASSES",
    "MAX_SECONDS",
    "MEMORY_LIMIT",
    "MODEL_OUT",
    "OVERWRITE",
    "PLOT",
    "RESUME",
]

FILES = Group("Checkpoints, records and limits")

DATASET = Option(place="read", argument=True)
MODEL_OUT = Option(help="Where the model goes.", metavar="STORE", place="write")
HYPER = Option(help="Hyperparameters, as `dkgp tune` writes them.", metavar="FILE", place="read")
BY_REFERENCE = Option(help="Let the model refer to DATASET instead of copying its inputs.")
AS_IN_THE_PAPER = Option(
    help="Take the settings that the method's paper prints, listed below in this help; flags beside it win.", type=bool
)
MAX_PASSES = Option(help="Stop after so many passes over the kernel's columns.", above=0)
MAX_SECONDS = Option(help="Stop after so many seconds.", above=0)
MEMORY_LIMIT = Option(
    help="Refuse to start where more is projected, such as 4GiB.  [default: what is available]",
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
RESUME = Option(help="Go on from the checkpoint, to the bit-same result.", group=FILES)
PLOT = Option(help="Draw the course of the run into a .png, .pdf or .svg.", metavar="FILE", place="write", group=FILES)
LOG_JSON = Option(help="Write one JSON line for each round.", metavar="FILE", place="write", group=FILES)
OVERWRITE = Option(help="Replace outputs that exist.", group=FILES)
