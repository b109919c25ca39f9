"""An example of the gallery, what each side makes of it, and how far these are from each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Standard deviations are compared with themselves, but for those below this share of the largest.
LEAST_STD = 0.01


class Room(Protocol):
    """A package that has both classes: `sklearn.gaussian_process`, or `dkgp`."""

    GaussianProcessRegressor: Any
    GaussianProcessClassifier: Any


@dataclass(frozen=True)
class Part:
    """A model of an example, fitted, and its predictions.

    Attributes
    ----------
    label
        Name among the example's models.
    mean, std
        Of a regression, (r,).
    probability
        Of a classifier, (r, C).
    theta, likelihood
        Logarithms of the hyperparameters that were found, and the log marginal likelihood there; None of a model that
        was not fitted.
    """

    label: str
    mean: FloatArray | None = None
    std: FloatArray | None = None
    probability: FloatArray | None = None
    theta: FloatArray | None = None
    likelihood: float | None = None

    @classmethod
    def regression(cls, label: str, model: Any, inputs: Any) -> Part:
        """Predictions of a regression, fitted or not."""
        mean, std = model.predict(inputs, return_std=True)
        if not hasattr(model, "kernel_"):
            return cls(label, mean, std)
        return cls(label, mean, std, None, model.kernel_.theta, float(model.log_marginal_likelihood_value_))

    @classmethod
    def classification(cls, label: str, model: Any, inputs: Any) -> Part:
        """Probabilities of a classifier."""
        kernels = getattr(model.kernel_, "kernels", [model.kernel_])  # of several classes, one each
        theta = np.concatenate([kernel.theta for kernel in kernels])
        probability = model.predict_proba(inputs)
        return cls(label, None, None, probability, theta, float(model.log_marginal_likelihood_value_))


@dataclass(frozen=True)
class Example:
    """An example: models as either package fits them, and a picture.

    Attributes
    ----------
    name, title
        On the command line, and over the picture.
    n
        Samples.
    solve
        Fits all models of the example by a package's classes.
    draw
        Draws them on a figure.
    spread
        Standard deviation of the targets, in which means are compared.
    height
        Of the picture, in inches.
    """

    name: str
    title: str
    n: int
    solve: Callable[[Room], list[Part]]
    draw: Callable[[Any, list[Part]], None]
    spread: float = 1.0
    height: float = 4.6


def differences(mine: Sequence[Part], theirs: Sequence[Part], spread: float) -> dict[str, float | None]:
    """The largest differences of an example's models, by quantity; None of what it has not.

    mean: in standard deviations of the targets. std: relative to scikit-learn's, which counts as 1 % of its model's
    largest at least. theta: of logarithms. likelihood: in nats. probability: as they are.
    """
    kinds: dict[str, list[float]] = {name: [] for name in ("mean", "std", "probability", "theta", "likelihood")}
    for one, other in zip(mine, theirs, strict=True):
        if one.mean is not None and other.mean is not None:
            kinds["mean"].append(float(np.abs(one.mean - other.mean).max()) / spread)
        if one.std is not None and other.std is not None:
            least = np.maximum(other.std, LEAST_STD * other.std.max())
            kinds["std"].append(float((np.abs(one.std - other.std) / least).max()))
        for name in ("probability", "theta"):
            ours, its = getattr(one, name), getattr(other, name)
            if ours is not None:
                kinds[name].append(float(np.abs(ours - its).max()))
        if one.likelihood is not None and other.likelihood is not None:
            kinds["likelihood"].append(abs(one.likelihood - other.likelihood))
    return {name: max(values) if values else None for name, values in kinds.items()}
