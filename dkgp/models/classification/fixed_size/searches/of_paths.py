"""The paper's search: paths of every kernel that it looks at, all cardinalities and noise variances from one pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dkgp.cluster.executors.base import split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data.types import Progress
from dkgp.models.classification.fixed_size.chosen import choose
from dkgp.models.classification.fixed_size.paths import candidate_draws
from dkgp.models.classification.fixed_size.searches.asked import Point
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.state import SearchState
from dkgp.models.classification.fixed_size.system import FoldSystem, Targets, fold_systems
from dkgp.models.classification.fixed_size.validation import chosen_noise, validate_noise
from dkgp.models.classification.scaling import scaled
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers.checkpointing import Checkpoints


@dataclass(frozen=True)
class PathSearch:
    """Passes over the data that score the kernels which a search asks for; without one, the kernel as it starts."""

    state: SearchState
    targets: Targets
    settings: FixedSizeSettings
    noise_variance: float | None
    checkpoints: Checkpoints
    callback: Callable[[Any], None] | None
    check: Callable[[Progress | None], None]

    def run(self, operator: BlockedKernelOperator, together: int) -> None:
        """Go on to the search's end, `together` kernels a pass at most."""
        state = self.state
        while points := self._next_points():
            scores: list[float] = []
            for batch in split_evenly(points, -(-len(points) // max(1, together))):
                kernels = [scaled(state.start, math.exp(point[0])) for point in batch]
                systems = fold_systems(operator, state.prototypes, kernels, self.targets, self.settings.intercept)
                state.passes += 1
                while systems:
                    point, system = batch[-len(systems)], systems.pop(0)
                    scores.append(self._score(system, point))
            if state.search is not None:
                state.search.tell(scores)
            self.checkpoints.save(state)
            self.check(None)

    def _next_points(self) -> list[Point]:
        if self.state.search is not None:
            return self.state.search.ask()
        return [(0.0,)] if self.state.best is None else []

    def _score(self, system: FoldSystem, point: Point) -> float:
        """The score of a kernel's best noise variance; the best of all is kept."""
        state, settings = self.state, self.settings
        noise_variances = settings.noise_variances
        if self.noise_variance is not None:
            noise_variances = (self.noise_variance,)
        elif len(point) > 1:
            noise_variances = (math.exp(point[1]),)
        most = min(settings.max_basis or system.size, system.size)
        draws = candidate_draws(system.size, most, settings.candidates, settings.seed)
        with single_threaded_blas():
            validations = validate_noise(
                system, noise_variances, stop=settings.rule(), max_basis=most, draws=draws,
                heed=lambda: self.check(None),
            )  # fmt: skip
            best, score = chosen_noise(validations), min(validation.score for validation in validations)
            if state.best is None or score < min(record["score"] for record in state.history):
                state.best = choose(system, best, settings.cardinality, draws)
        record = {
            "pass": state.passes,
            "scale": math.exp(point[0]),
            "noise_variance": best.noise_variance,
            "cardinality": best.best,
            "reached": max(len(validation.scores) for validation in validations) - 1,
            "score": score,
            "noise_variances": [validation.noise_variance for validation in validations],
            "scores": [validation.score for validation in validations],
        }
        state.history.append(record)
        if self.callback is not None:
            self.callback(record)
        return score
