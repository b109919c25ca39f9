"""One path of the pursuit with everything known: kernel, noise variance and cardinality.

This is what the paper's Table 4 times. With other candidates than cross-validation saw it also shows the paper's
outliers of SCDPP: dkgp draws one set of candidates for all folds and for the fit, so a cardinality is judged by the
very choices that the fit makes; a fit that draws anew may choose otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset
from dkgp.kernels import Kernel
from dkgp.models.classification.fixed_size.paths import Path, candidate_draws
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.system import Targets, fold_systems
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.operators import BlockedKernelOperator

FloatArray = NDArray[np.float64]

# What is added to the seed of the candidates that were judged.
OTHER_SEED = 1_000_000


@dataclass(frozen=True)
class Redrawn:
    """A model of the path, (k, d) prototypes and (k,) weights, as it comes from the recursion."""

    kernel: Kernel
    prototypes: FloatArray
    weights: FloatArray
    intercept: float

    def decisions(self, inputs: FloatArray) -> FloatArray:
        """Decisions (r, 1) at standardised inputs (r, d)."""
        return np.asarray(self.kernel(inputs, self.prototypes) @ self.weights[:, None] + self.intercept)


def redrawn(
    dataset: Dataset,
    labels: Labels,
    settings: FixedSizeSettings,
    kernel: Kernel,
    noise_variance: float,
    cardinality: int,
    executor: LocalExecutor,
    *,
    anew: bool,
) -> Redrawn:
    """Take so many steps, with other candidates if `anew`; an intercept that competes takes one of them."""
    n = dataset.n_samples
    targets = Targets(labels.signs(), np.zeros(n, dtype=np.intp), 1)
    with BlockedKernelOperator(kernel, noise_variance, dataset, executor) as operator:
        _, prototypes = choose_prototypes(
            settings.prototypes, operator, settings.pool_size(n, 1), settings.seed, targets=labels.signs()
        )
        (system,) = fold_systems(operator, prototypes, [kernel], targets, settings.intercept)
    draws = candidate_draws(system.size, cardinality, settings.candidates, settings.seed + OTHER_SEED * anew)
    path = Path(system, noise_variance, None, draws)
    path.advance(cardinality)
    model = path.model(cardinality)
    return Redrawn(kernel, prototypes[model.order], model.weights[:, 0], float(model.intercept[0]))
