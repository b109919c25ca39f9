"""The job that `dkgp sparse` is: what is asked for, and what of it does not go together."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from dkgp.cluster import ClusterOptions
from dkgp.errors import InputError, UsageError
from dkgp.models.sparse.ladder import LadderTarget
from dkgp.models.sparse.ladder.plan import LadderPlan
from dkgp.models.sparse.train import SparseSettings

__all__ = ["GREEDY_OPTIONS", "SparseJob"]

# Settings that a greedy choice alone has.
GREEDY_OPTIONS = ("candidates", "per_round", "exhaustive", "screen", "score_rows")
DEFAULTS = {each.name: each.default for each in fields(SparseSettings)}


@dataclass(frozen=True)
class SparseJob:
    """A sparse model to train: data, hyperparameters, method and basis, and where everything goes.

    Attributes
    ----------
    dataset, hyper, out
        Dataset store, hyperparameter file, and where the model goes.
    settings
        Method and basis.
    basis_size
        m, which must not exceed n; "auto": grow the basis until a target is met. None: that of the settings, whose
        default stands for all samples where there are fewer.
    largest_basis
        Of a basis that grows: up to here, whatever the exact model costs.
    given_basis
        A file or store of basis samples; see `dkgp.commands.sparse.given`.
    gap, target_distance
        What is to be proven: a duality gap (None: that of the settings), and the training-RMS distance to the exact
        mean, in standard deviations of the targets.
    cluster
        Where the work runs.
    checkpoint, checkpoint_seconds, resume
        Where (default: `OUT.checkpoint`) and how often to save a greedy choice; whether to go on from what is there.
    memory_limit_bytes
        What the processes on this machine may take; default: what is available.
    plot, log_json
        Files for the plot against m and the records of the rounds.
    overwrite
        Whether outputs that are there may be replaced.
    as_in_the_paper
        Take the method's settings from its paper, sggp's by default: true for all that are at their defaults, or those
        that it decides; see `dkgp.commands.presets`.
    """

    dataset: str
    hyper: str
    out: str
    settings: SparseSettings = field(default_factory=SparseSettings)
    basis_size: int | Literal["auto"] | None = None
    largest_basis: int | None = None
    given_basis: str | None = None
    gap: float | None = None
    target_distance: float | None = None
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    checkpoint: str | None = None
    checkpoint_seconds: float = 30.0
    resume: bool = False
    memory_limit_bytes: int | None = None
    plot: str | None = None
    log_json: str | None = None
    overwrite: bool = False
    as_in_the_paper: bool | tuple[str, ...] = False

    @property
    def checkpoint_url(self) -> str:
        """The place of checkpoints."""
        return self.checkpoint or f"{self.out.rstrip('/')}.checkpoint"

    @property
    def is_greedy(self) -> bool:
        """True if the basis is chosen greedily."""
        return self.given_basis is None and self.settings.chosen_basis == "greedy"

    @property
    def grows(self) -> bool:
        """True if the basis grows, round by round or rung by rung: then there are checkpoints and a plot."""
        return self.is_greedy or self.basis_size == "auto"

    @property
    def target(self) -> LadderTarget | None:
        """The target of a basis that grows by itself; None of one whose size was given."""
        if self.basis_size != "auto":
            return None
        return LadderTarget(self.target_distance, self._gap, self.largest_basis)

    @property
    def _gap(self) -> float | None:
        return self.settings.gap if self.gap is None else self.gap

    @property
    def solver_settings(self) -> dict[str, Any]:
        """The settings that a checkpoint must share, of a job that is sized."""
        if self.target is None:
            return self.settings.greedy().identity()
        return LadderPlan.identity(self.settings, self.target)

    def check(self) -> None:
        """Refuse what can be seen to be wrong without the data.

        Raises
        ------
        UsageError
            Options that do not go together.
        InputError
            A value out of range.
        """
        if self.target_distance is not None and not (math.isfinite(self.target_distance) and self.target_distance > 0):
            raise InputError(f"`target_distance` must be positive; got {self.target_distance}")
        if isinstance(self.basis_size, int) and self.basis_size < 1:
            raise InputError(f"`basis_size` must be at least 1; got {self.basis_size}")
        if self.basis_size != "auto" and self.largest_basis is not None:
            raise UsageError("`largest_basis` belongs to a basis that grows; give `basis_size` auto, or leave it out")
        if self.basis_size == "auto" and self.target_distance is None and self._gap is None:
            raise UsageError("`basis_size` auto grows until `target_distance` or `gap` is met; give one of them")
        if self.given_basis is not None:
            other = {"basis_size": self.basis_size, "basis": self.settings.basis, "gap": self._gap}
            for name, value in other.items():
                if value is not None:
                    raise UsageError(f"`given_basis` is the basis as it stands; leave out `{name}`, or `given_basis`")
        settled = self._settled(self.settings.basis_size)
        if self.is_greedy:
            settled.greedy()
        else:
            for name in GREEDY_OPTIONS:
                if getattr(self.settings, name) != DEFAULTS[name]:
                    raise UsageError(f"`{name}` belongs to a greedy basis; choose `basis` greedy, or leave it out")
            if self.plot is not None and not self.grows:
                raise UsageError("`plot` shows a basis as it grows, greedily or by `basis_size` auto; leave it out")

    def sized(self, n: int, given: int | None = None) -> SparseJob:
        """Return the job with the size that it means for n samples, or that of a given basis.

        Raises
        ------
        InputError
            More basis samples were asked for than there are samples.
        """
        if given is not None:
            return replace(self, settings=self._settled(given))
        if self.basis_size == "auto":
            return replace(self, settings=self._settled(min(n, self.largest_basis or n)))
        size = self.settings.basis_size if self.basis_size is None else self.basis_size
        if size > n:
            if self.basis_size is not None or size != DEFAULTS["basis_size"]:
                raise InputError(
                    f"a basis of {size:,} samples was asked for; there are {n:,}. Give `basis_size` {n} at most"
                )
            size = n
        return replace(self, settings=self._settled(size))

    def _settled(self, size: int) -> SparseSettings:
        """The settings with this size, and with the gap where the choice is to reach it: a ladder's is its target's."""
        return replace(self.settings, basis_size=size, gap=self._gap if self.target is None else None)

    def identity(self, given_digest: str | None) -> dict[str, Any]:
        """Return what determines the model beside data and hyperparameters, once the job is sized."""
        return {
            **asdict(self.settings),
            "gap": self._gap,
            "given_basis": given_digest,
            "target_distance": self.target_distance,
            "largest_basis": self.largest_basis,
            "auto": self.basis_size == "auto",
        }
