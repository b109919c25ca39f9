"""The best that a search has met: its hyperparameters, its path, and the models of all samples and of each fold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.kernels import Kernel, kernel_from_json
from dkgp.models.classification.fixed_size.paths import Path, PathModel
from dkgp.models.classification.fixed_size.steps import Draws
from dkgp.models.classification.fixed_size.system import FoldSystem
from dkgp.models.classification.fixed_size.validation import Validation, chosen_cardinality


@dataclass(frozen=True)
class Chosen:
    """A kernel with the best of its noise variances, and the cardinality by rule.

    `best` is the cardinality of the best score, which a search goes by; `path` has score and standard deviation over
    folds by cardinality; `stopped` where rule (38) ended it. `model` is of all samples, by the sums: what it chooses
    counts, not its weights, unless it is of the `whole` pool. `folds` are of all but each fold.
    """

    kernel: Kernel
    noise_variance: float
    cardinality: int
    best: int
    score: float
    path: list[dict[str, float]]
    stopped: bool
    model: PathModel
    folds: tuple[PathModel, ...]
    whole: bool = False

    def metadata(self) -> dict[str, Any]:
        """Everything but the models, as JSON."""
        plain = {name: value for name, value in vars(self).items() if name not in ("model", "folds")}
        return {**plain, "kernel": self.kernel.to_json()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The models."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, model in zip(("model", *map(str, range(len(self.folds)))), (self.model, *self.folds), strict=True):
            arrays |= {f"{name} order": model.order, f"{name} weights": model.weights}
            arrays |= {f"{name} intercept": model.intercept}
        return arrays

    @classmethod
    def restored(cls, metadata: dict[str, Any], arrays: dict[str, NDArray[Any]], folds: int) -> Chosen:
        """The same of what a checkpoint holds."""
        models = [
            PathModel(*(arrays[f"{name} {part}"] for part in ("order", "weights", "intercept")))
            for name in ("model", *map(str, range(folds)))
        ]
        fields = {**metadata, "kernel": kernel_from_json(metadata["kernel"])}
        return cls(**fields, model=models[0], folds=tuple(models[1:]))


def choose(system: FoldSystem, validation: Validation, rule: str, draws: Draws | None) -> Chosen:
    """Take the cardinality by rule, and go its paths once more."""
    k = chosen_cardinality(validation, rule)
    models = []
    for fold in (None, *range(system.folds)):
        path = Path(system, validation.noise_variance, fold, draws)
        path.advance(k)
        models.append(path.model(k))
    spread = validation.spread
    path_records = [
        {"cardinality": cardinality, "score": float(score), "std": float(spread[cardinality])}
        for cardinality, score in enumerate(validation.scores)
    ]
    return Chosen(
        system.kernel, validation.noise_variance, k, validation.best, validation.score, path_records,
        validation.stopped, models[0], tuple(models[1:]),
    )  # fmt: skip


def fold_arrays(best: Chosen, prototypes: NDArray[np.float64]) -> tuple[Any, Any, Any]:
    """Prototypes, weights and intercepts of the folds' models."""
    return (
        tuple(prototypes[model.order] for model in best.folds),
        tuple(model.weights for model in best.folds),
        np.stack([model.intercept for model in best.folds]),
    )
