"""The space of a refinement: parameters of a kernel and the noise variance, as a search on a subset has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dkgp.kernels import Kernel
from dkgp.models.hyperparameters import Hyperparameters, TunedParameter, with_switched_off
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.space import LogNormal, SearchSpace, search_space
from dkgp.operators.base import FloatArray


@dataclass(frozen=True)
class RefineSpace:
    """Log parameters, those of the kernel in its own order and the noise variance last, and what they stand for.

    The search may move, or holds fixed, q of them.
    """

    start: Hyperparameters
    space: SearchSpace
    feature_names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        start: Hyperparameters,
        feature_names: tuple[str, ...],
        *,
        learn_variance: bool = False,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        fixed: Mapping[str, float] | None = None,
        priors: Mapping[str, LogNormal | str] | None = None,
    ) -> RefineSpace:
        """Of the hyperparameters to start from; the rest as for `dkgp.models.tune`.

        Raises `InputError`: as for `tune`.
        """
        family = family_of(start.kernel, np.zeros((2, len(feature_names))), learn_variance, feature_names)
        space = search_space(family, feature_names, bounds=bounds, fixed=fixed, priors=priors)
        return cls(start, space, feature_names)

    @property
    def first(self) -> FloatArray:
        """Log parameters of `start`: (q,), within the bounds; fixed ones at their values."""
        return np.asarray(self.space.within(self._logs()))

    def _logs(self) -> FloatArray:
        values = np.array([parameter.value for parameter in self.start.kernel.parameters()])
        return np.asarray(np.log(np.append(values[self.space.positions], self.start.noise_variance)))

    def kernel(self, parameters: FloatArray) -> Kernel:
        """The kernel that the log parameters stand for."""
        values = np.array([parameter.value for parameter in self.start.kernel.parameters()])
        values[self.space.positions] = np.exp(parameters[:-1])
        return self.start.kernel.with_parameters(values)

    def noise_variance(self, parameters: FloatArray) -> float:
        """s2."""
        return math.exp(parameters[-1])

    def unmoved(self) -> Hyperparameters:
        """`start` itself, or the nearest to it that respects bounds and fixed values; with its parameters by name."""
        if not np.allclose(self.first, self._logs(), rtol=0.0, atol=1e-9):
            return self.hyperparameters(self.first)
        return replace(self.start, parameters=self.start.parameters or self._tuned(self.first))

    def hyperparameters(self, parameters: FloatArray) -> Hyperparameters:
        """`start` with other values, without the figures and the noise model that belong to the old ones."""
        return replace(
            self.start,
            kernel=self.kernel(parameters),
            noise_variance=self.noise_variance(parameters),
            parameters=self._tuned(parameters),
            log_marginal_likelihood=None,
            leave_one_out_log_likelihood=None,
            log_prior=None,
            projected_gradient=None,
            sparse=None,
            scores=None,
            noise_model=None,
            student_t=None,
            noise_comparison=None,
        )

    def _tuned(self, parameters: FloatArray) -> tuple[TunedParameter, ...]:
        """All parameters by name, each with the start of the first search that moved it."""
        before = {parameter.name: parameter.start for parameter in self.start.parameters or ()}
        tuned = self.space.tuned(parameters, self.first, self.feature_names)
        moved = (replace(parameter, start=before.get(parameter.name, parameter.start)) for parameter in tuned)
        return with_switched_off(moved, self.start.parameters or ())
