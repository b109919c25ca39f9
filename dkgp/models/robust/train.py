"""The exact Gaussian process under Student's t: solves in turns with the samples' weights, until these stay.

The first turn has the noise s2 for all samples. What is left of the targets, r = N alpha - g of a solution alpha with
the gradient g under the noise N, gives each sample the noise of the next turn (`StudentT`), which starts from this
one's solution. What results is the mode of the function's posterior under Student's t, to within a hundredth in every
weight; each turn raises its density. The certificate is that of the last turn's equations: the weights are theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset, ModelRecord
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.exact import TrainedModel, known_noise, train
from dkgp.models.noise import StudentT
from dkgp.operators.base import FloatArray
from dkgp.solvers import Solver, StoppingRule
from dkgp.solvers.driver import Loop, interrupted

WEIGHT_TOLERANCE, MOST_TURNS = 0.01, 60
# Of all turns together.
_SUMS = ("column_passes", "kernel_evaluations", "seconds")


@dataclass(frozen=True)
class Turn:
    """The start of a turn: what a checkpoint holds.

    Attributes
    ----------
    number
        Of the turn, from 0.
    iteration
        Rounds of the turns before it.
    beyond
        What samples have beside the least noise, (n,).
    alpha
        Coefficients that the solve starts from, (n, 1).
    sums
        Passes, entries and seconds of the turns before it.
    """

    number: int
    iteration: int
    beyond: FloatArray
    alpha: FloatArray
    sums: dict[str, float]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""
        return {"beyond": self.beyond, "alpha": self.alpha}

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types."""
        return {"iteration": self.iteration, "number": self.number, "sums": self.sums}

    def after(self, trained: TrainedModel, beyond: FloatArray) -> Turn:
        """The start of the next one."""
        return Turn(
            self.number + 1,
            self.iteration + max(1, int(trained.summary["iterations"])),
            beyond,
            trained.solution.alpha,
            self.added(trained),
        )

    def added(self, trained: TrainedModel) -> dict[str, float]:
        """The sums with this turn's."""
        return {name: self.sums[name] + trained.summary[name] for name in _SUMS}


def train_student(
    dataset: Dataset,
    kernel: Kernel,
    likelihood: StudentT,
    context: RunContext | BlockExecutor,
    *,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    initial: ArrayLike | None = None,
) -> TrainedModel:
    """Fit an exact GP whose noise has Student's t.

    Raises `InputError`: several targets, known noise, or as `dkgp.models.exact.train`; `InterruptedRunError`: the turns
    before are in the checkpoint, where there is one.

    Parameters
    ----------
    dataset, kernel, context, solver, stopping, initial
        As for `dkgp.models.exact.train`. Checkpoints are of turns: an interrupted one begins again, to the same bits.

    Returns
    -------
    TrainedModel
        With the samples' noise of the last turn. Its `summary` has `student_t` and `weights`: the number of turns, by
        how much the last one would change a weight, the least weight, and how many samples weigh less than a half. Not
        converged where weights still change after 60 turns.
    """
    require_one_target(dataset)
    context, n = RunContext.of(context), dataset.n_samples
    checkpoints = Loop(context, {} if solver is None else solver.settings())
    turn = _begun(checkpoints, n, likelihood, initial)
    while True:
        try:
            trained = train(
                dataset,
                kernel,
                likelihood.least,
                _within(context, turn.iteration),
                sample_noise=turn.beyond,
                solver=solver,
                stopping=stopping,
                initial=turn.alpha,
            )
        except InterruptedRunError:
            url = None if checkpoints.saved_iteration is None else checkpoints.url
            raise interrupted(f"in turn {turn.number + 1} of weights", url) from None
        alpha, gradient = trained.solution.alpha[:, 0], trained.solution.gradient[:, 0]
        beyond = likelihood.beyond_least(((likelihood.least + turn.beyond) * alpha - gradient) ** 2)
        change = float(np.max(np.abs(likelihood.weights(beyond) - likelihood.weights(turn.beyond))))
        if change <= WEIGHT_TOLERANCE or turn.number + 1 == MOST_TURNS or not trained.summary["converged"]:
            return _concluded(trained, turn, likelihood, change, dataset.n_features)
        turn = turn.after(trained, beyond)
        checkpoints.save(turn)


def noise_made(model: ModelRecord) -> dict[str, Any]:
    """The part of the identity of the run that made a model that tells the samples' noise; see `run_identity`."""
    student = model.summary.get("student_t")
    return known_noise(model.sample_noise) if student is None else {"student_t": student}


def require_one_target(dataset: Dataset) -> None:
    """Refuse data that Student's t cannot weigh; `InputError`."""
    if dataset.n_targets > 1:
        raise InputError(
            f"Student's t weighs samples by one target; '{dataset.url}' has {dataset.n_targets}. Train them one by "
            "one, or tune with the normal distribution"
        )
    if dataset.all_sample_noise() is not None:
        raise InputError(
            f"the noise of the samples of '{dataset.url}' is known, and Student's t finds it; ingest without that "
            "column, or tune with the normal distribution"
        )


def _begun(checkpoints: Loop, n: int, likelihood: StudentT, initial: ArrayLike | None) -> Turn:
    """The turn to go on with, or the first one, whose samples all have the noise s2."""
    latest = checkpoints.latest()
    if latest is not None:
        state = latest.metadata["state"]
        return Turn(state["number"], state["iteration"], latest.arrays["beyond"], latest.arrays["alpha"], state["sums"])
    alpha = np.zeros((n, 1)) if initial is None else np.array(initial, dtype=np.float64).reshape(n, 1)
    first = Turn(0, 0, np.full(n, likelihood.scale - likelihood.least), alpha, dict.fromkeys(_SUMS, 0.0))
    checkpoints.save(first)
    return first


def _within(context: RunContext, before: int) -> RunContext:
    """The surroundings of a turn's solve, whose rounds are counted on from `before`, and saved by no checkpoint."""
    callback = context.callback

    def counted(progress: Any) -> None:
        assert callback is not None
        callback(replace(progress, iteration=before + progress.iteration))

    count: Callable[[Any], None] | None = None if callback is None else counted
    return replace(context, checkpointing=None, callback=count)


def _concluded(trained: TrainedModel, turn: Turn, likelihood: StudentT, change: float, d: int) -> TrainedModel:
    """The last turn's model, with what is told of all turns."""
    weights = likelihood.weights(turn.beyond)
    settled = change <= WEIGHT_TOLERANCE
    summary = {
        **trained.summary,
        **turn.added(trained),
        "iterations": turn.iteration + trained.summary["iterations"],
        "student_t": likelihood.to_json(),
        "weights": {
            "turns": turn.number + 1,
            "change": change,
            "least": float(weights.min()),
            "below_half": int(np.sum(weights < 0.5)),
        },
    }
    if trained.summary["converged"] and not settled:
        summary |= {
            "converged": False,
            "reason": f"weights still changed by {change:.2g} after {MOST_TURNS} turns",
            "advice": "the model holds for the weights that it has; tune again, with a larger `subset`",
        }
    return replace(trained, summary=summary, noise_model=likelihood.of_observations(d))
