"""Another library's Gaussian process of labels on a basis with neighbours, by an interpreter that has it.

GPBoost's ("gpboost,basis=200,neighbours=30,inversion=iterative,python=PATH") is given the kernel that `gp` has; it
chooses inducing points of its own, and one call fits and predicts. Its seconds are of that call, without the import.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp_benchmarks.classify.probabilities.own import SUBSET, Probable, count, yes
from dkgp_benchmarks.classify.trial import Classifier, Trial
from dkgp_benchmarks.peers.interpreters import find_interpreters, run_peer

FloatArray = NDArray[np.float64]

PEER = "gpboost-labels"
INVERSIONS = ("cholesky", "iterative")


def _inversion(text: str) -> str:
    if text not in INVERSIONS:
        raise ValueError
    return text


SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "basis": count,
    "neighbours": count,
    "subset": count,
    "isotropic": yes,
    "inversion": _inversion,
    "python": str,
}


@dataclass
class _Peer:
    """A fit that is run with the samples to predict, and so once for these."""

    given: Mapping[str, Any]
    python: str
    size: int
    figures: dict[str, float] = field(default_factory=dict)  # in place of those of `fit` and `probable`
    _found: FloatArray | None = None

    def decide(self, inputs: FloatArray) -> FloatArray:
        return self.probable(inputs) - 0.5

    def probable(self, inputs: FloatArray) -> FloatArray:
        if self._found is None:
            with tempfile.TemporaryDirectory() as folder:
                problem, predictions = Path(folder) / "problem.npz", Path(folder) / "predictions.npz"
                np.savez(problem, T=inputs, **self.given)
                told = run_peer(PEER, self.python, problem, predictions)
                with np.load(predictions) as archive:
                    self._found = np.clip(archive["mean"][:, 0], 0.0, 1.0)
            self.figures = {
                "fit_seconds": told["seconds"],
                "fit_core_seconds": told["processor_seconds"],
                "probability_seconds": 0.0,
                "probability_core_seconds": 0.0,
            }
        return self._found


@dataclass(frozen=True)
class PeerProcess:
    """GPBoost's, with some settings."""

    settings: Mapping[str, Any]

    def tune(self, trial: Trial) -> dict[str, Any]:
        """As `gp` does."""
        named = {name: self.settings[name] for name in ("subset", "isotropic") if name in self.settings}
        return Probable("gp", {"subset": SUBSET, **named}).tune(trial)

    def fit(self, trial: Trial, tuning: dict[str, Any]) -> Classifier:
        """Prepare what the library is given."""
        kernel = Hyperparameters.from_json(tuning["hyperparameters"]).kernel
        if not isinstance(kernel, SquaredExponential):
            raise InputError(f"GPBoost is given a squared exponential kernel; got {type(kernel).__name__}")
        python = self.settings.get("python", sys.executable)
        python = find_interpreters((PEER,), (python,))[PEER]
        size = min(self.settings.get("basis", 200), trial.n)
        given = {
            "X": trial.inputs,
            "y": trial.codes.astype(np.float64),
            "m": size,
            "neighbours": self.settings.get("neighbours", 30),
            "inversion": self.settings.get("inversion", INVERSIONS[0]),
            "gamma": kernel.feature_gamma,
            "variance": kernel.variance,
        }
        return _Peer(given, python, size)
