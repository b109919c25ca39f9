"""Sparse models on any number of workers: the same bits, their certificates' too, for every method and basis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.kernels import Matern32, SquaredExponential
from dkgp.models.sparse.bases import BLIND_BASES
from dkgp.models.sparse.model import METHODS
from dkgp.models.sparse.train import SparseSettings, train_sparse
from tests.covering import Axes, covering
from tests.engine.helpers import Problem, opened
from tests.models.sparse.judge import Judged
from tests.models.sparse.judge import Problem as Small

M = 24
GREEDY: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy by rows": {"score_rows": 600, "per_round": 4},
    "greedy to a gap": {"gap": 0.5, "per_round": 1},
    "greedy and screened": {"screen": 2, "per_round": 3},
}
COMBINATIONS = [
    (method, basis)
    for method, declared in METHODS.items()
    for basis in (GREEDY if declared.basis == "greedy" else BLIND_BASES)
    if (method, basis) != ("sd", "k-means")
]


def settings_of(method: str, basis: str) -> SparseSettings:
    more = GREEDY.get(basis, {})
    passes = 0.5 if (method, basis) in (("vfe", "pivoted"), ("sggp", "greedy")) else 0.0
    return SparseSettings(method, M, "greedy" if basis in GREEDY else basis, certify_passes=passes, seed=5, **more)


def everything(problem: Problem, executor: BlockExecutor, method: str, basis: str) -> dict[str, Any]:
    """Return the model and its summary."""
    trained = train_sparse(problem.dataset, problem.kernel, 0.05, executor, settings_of(method, basis))
    model = trained.model
    arrays = {"prototypes": model.prototypes, "weights": model.weights, "lower": model.lower}
    if model.normal is not None:
        arrays["normal"] = model.normal
    if trained.near is not None:
        arrays |= {"near weights": trained.near.whitened, "near normal": trained.near.normal}
    return {
        **{name: np.asarray(array).tobytes() for name, array in arrays.items()},
        "certificate": trained.certificate.to_json(),
        "risks": None if trained.greedy is None else [record.risk for record in trained.greedy.history],
        "dual": None if trained.greedy is None else trained.greedy.dual.tolist(),
    }


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """Seven blocks, the last of them short, and two targets."""
    X, y = friedman1(900, n_features=6, seed=7)
    url = str(tmp_path_factory.mktemp("sparse") / "train.zarr")
    dataset = dataset_from_arrays(url, X, np.column_stack([y, np.sin(y / 3) + X[:, 5]]), chunk_rows=140)
    return Problem(dataset, SquaredExponential((0.2, 0.2, 0.15, 0.05, 0.05, 0.01)), 0.05)


@pytest.fixture(scope="module")
def expected(problem: Problem) -> Iterator[Callable[[str, str], dict[str, Any]]]:
    """Results of one thread, computed once."""
    executor = LocalExecutor(1)
    yield cache(partial(everything, problem, executor))
    executor.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "workers", "strength"),
    [
        ("none", 3, 1),
        pytest.param("local", 5, 2, marks=pytest.mark.portable),
        pytest.param("processes", 2, 1, marks=pytest.mark.slow),  # whose rounds take their time
    ],
)
def test_every_method_and_basis_has_the_same_bits(
    problem: Problem, expected: Callable[[str, str], dict[str, Any]], kind: str, workers: int, strength: int
) -> None:
    """Each method and each basis at least, or all of their combinations."""
    axes: list[Axes] = [{("method",): method, ("basis",): basis} for method, basis in COMBINATIONS]
    tried = [COMBINATIONS[place] for place in covering(axes, strength)]
    assert len(tried) == len(COMBINATIONS) or strength == 1
    with opened(kind, workers) as executor:
        found = {of: everything(problem, executor, *of) for of in tried}
    apart = [(of, what) for of in tried for what, it in expected(*of).items() if found[of][what] != it]
    assert apart == []


@pytest.mark.covering
@pytest.mark.parametrize("method", ["sd", "vfe", "fitc"])
@pytest.mark.parametrize("noise", [0.05, 1e-9])
def test_what_is_proven_holds_on_this_processor(method: str, noise: float) -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((20, 2))
    y = np.sin(2.0 * X[:, :1]) + np.sqrt(noise) * rng.standard_normal((20, 2))
    small = Small(Matern32(gamma=(0.3, 0.5)), noise, X, y, 1.3 * rng.standard_normal((3, 2)))
    executor = LocalExecutor(1)
    judged = Judged(small, method, executor, np.arange(0, 20, 2)).judge()
    executor.close()
    assert judged.broken == []
    assert sum(judged.checked.values()) > 20
