"""A basis for each test sample's variance: Smola and Bartlett's algorithm to the letter, and the exact variances."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_prediction
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import Features, Linear, Matern32, SquaredExponential, TileEvaluator
from dkgp.models.context import RunContext
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.rounding import EPS
from dkgp.models.variance.greedy import BasisBounds, BasisSearch
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators import ArrayInputs
from dkgp.solvers.greedy_basis import DUAL_STREAM, GreedySettings
from tests.engine.helpers import content
from tests.models.variance.variance_problems import KINDS, Long, VarianceProblem
from tests.models.variance.variance_world import NAMES, TARGETS, TESTS, N, World, draw
from tests.solvers.paper import dealt, without

pytestmark = pytest.mark.filterwarnings("ignore:The feature:UserWarning")

FEW = 11


def settings_of(n: int, gap: float = 0.025, seed: int = 0, most: int = 500) -> GreedySettings:
    return GreedySettings(min(most, n), gap=gap, gap_of="risk", seed=seed)


# Of a problem's test samples: like the training samples, equal to one, close to one, and far out.
SHOWN = [0, 6, 10, 12]


def bars(problem: VarianceProblem, settings: GreedySettings, evaluator: Any = None) -> list[BasisBounds]:
    search = BasisSearch(problem.kernel, problem.noise_variance, ArrayInputs(problem.X))
    search._evaluator = evaluator or search._evaluator
    found = [search(x[None], settings) for x in problem.T[SHOWN]]
    search.close()
    return found


def to_the_letter(
    K: np.ndarray, s2: float, k: np.ndarray, gap: float, seed: int, most: int
) -> tuple[list[int], float, float, float]:
    """Algorithm 1 for (10), y = k, with dense matrices: S, bounds on k' Kbar^-1 k and their gap over their mean."""
    n = len(k)

    def q_of(S: list[int]) -> float:
        """Least Q (5) of weights on S."""
        A, b = s2 * K[np.ix_(S, S)] + K[S] @ K[:, S], K[S] @ k
        return -0.5 * float(b @ np.linalg.solve(A, b))

    def q_star_of(S: list[int]) -> float:
        """Least Q* (6)."""
        return -0.5 * float(k[S] @ np.linalg.solve(K[np.ix_(S, S)] + s2 * np.eye(len(S)), k[S]))

    S, S_star = list[int](), list[int]()
    while True:
        M = dealt(n, 59, seed, len(S))(without(S, n))
        M_star = dealt(n, 59, seed + DUAL_STREAM, len(S))(without(S_star, n))
        S.append(min(M, key=lambda i: q_of([*S, i])))
        S_star.append(min(sorted(M_star), key=lambda i: q_star_of([*S_star, i])))
        # (8): what is taken off the prior variance lies between -2 Q* and (|k|^2 + 2 Q) / s2.
        lower, upper = -2.0 * q_star_of(S_star), (float(k @ k) + 2.0 * q_of(S)) / s2
        reached = (upper - lower) / (0.5 * (upper + lower))
        if reached <= gap or len(S) == most:
            return S, lower, upper, reached


@pytest.mark.covering
@pytest.mark.parametrize(
    "kernel", [SquaredExponential((0.1, 0.1, 0.1)), Matern32((1.0, 0.3, 0.1), 2.0)], ids=["se", "matern"]
)
@pytest.mark.parametrize("gap", [0.1, 0.025])
def test_it_is_algorithm_1_to_the_letter(kernel: Any, gap: float, rng: np.random.Generator) -> None:
    X, T, s2 = rng.standard_normal((150, 3)), rng.standard_normal((6, 3)), 0.1
    search, lengths = BasisSearch(kernel, s2, ArrayInputs(X)), []
    for number, x in enumerate(T):
        k = kernel(X, x[None])[:, 0]
        S, lower, upper, reached = to_the_letter(kernel(X, X), s2, k, gap, number, 40)
        found = search(x[None], settings_of(150, gap, number, 40))
        assert found.kernels == len(S)
        assert found.met == (reached <= gap)
        prior = float(kernel.diagonal(x[None])[0])
        assert found.lower == pytest.approx(max(0.0, prior - upper), rel=1e-6, abs=1e-9)
        assert found.upper == pytest.approx(prior - lower, rel=1e-6, abs=1e-9)
        lengths.append(len(S))
    assert len(set(lengths)) > 1
    search.close()


@pytest.mark.spread(5)
@pytest.mark.covering
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("gap", [0.3, 1e-4])
def test_intervals_hold_the_exact_variance(name: str, gap: float) -> None:
    problem = KINDS[name]
    met = 0
    for found, exact in zip(bars(problem, settings_of(problem.n, gap)), problem.exact[SHOWN], strict=True):
        digit = 1e-18 * problem.kernel.variance
        assert Long(found.lower) - exact <= digit
        assert exact - Long(found.upper) <= digit
        met += found.met
        if found.met and found.lower > 0.0:
            taken = problem.kernel.variance - np.array([found.upper, found.lower])
            assert taken[1] - taken[0] <= gap * taken.mean() + 1e-12 * problem.kernel.variance
    # The least gaps may need more samples than float64 can tell from each other's span.
    assert met == len(SHOWN) or gap < 0.01


class Off:
    """Entries of the kernel off by a relative `share`, of which the bounds know, or not."""

    def __init__(self, problem: VarianceProblem, share: float, told: bool) -> None:
        self._true, self._share, self._told = TileEvaluator(problem.kernel, "double", expanded=False), share, told
        self.prepare = self._true.prepare

    def tile(self, A: Features, B: Features) -> np.ndarray:
        return np.asarray(self._true.tile(A, B) * (1.0 + self._share))

    def row_errors(self, X: np.ndarray) -> np.ndarray:
        return self._true.row_errors(X) + (0.5 * abs(self._share) / EPS if self._told else 0.0)


@pytest.mark.long
def test_roundings_of_entries_are_counted() -> None:
    """With half of their digits wrong intervals hold, and they would not if the bounds did not know of it."""
    problem, wrong = KINDS["smooth"], {True: 0, False: 0}
    for told in wrong:
        for share in (1e-8, -1e-8):
            found = bars(problem, settings_of(problem.n, 1e-6, most=60), Off(problem, share, told))
            for some, exact in zip(found, problem.exact[SHOWN], strict=True):
                wrong[told] += bool(Long(some.lower) > exact or exact > Long(some.upper))
    assert wrong[True] == 0
    assert wrong[False] > 0


def test_a_sample_that_no_training_sample_says_anything_of() -> None:
    """Far out the kernel is zero or nearly, and there is nothing to choose, or nothing that matters."""
    X = np.random.default_rng(0).standard_normal((50, 2))
    search = BasisSearch(SquaredExponential((1.0, 1.0)), 0.1, ArrayInputs(X))
    found = search(np.full((1, 2), 60.0), settings_of(50))
    assert found.kernels <= 1
    assert found.lower <= 1.0 <= found.upper
    assert found.upper - found.lower < 1e-12
    linear = BasisSearch(Linear(weight=(1.0, 1.0)), 0.1, ArrayInputs(X))
    origin = linear(np.zeros((1, 2)), settings_of(50))
    assert (origin.lower, origin.upper) == (0.0, pytest.approx(0.0, abs=1e-300))


@pytest.fixture(scope="module")
def few(world: World, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The first of the world's test samples."""
    X, y = draw(TESTS, 2)
    where = tmp_path_factory.mktemp("few") / "test"
    return dataset_from_arrays(where, X[:FEW], y[:FEW], chunk_rows=5, feature_names=NAMES, target_names=TARGETS)


@pytest.mark.long
@pytest.mark.parametrize("latent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_predictions_hold_the_dense_gps_variances(
    world: World, few: Dataset, executor: BlockExecutor, tmp_path: Path, latent: bool
) -> None:
    said: list[str] = []
    settings = VarianceSettings(gap=0.05, basis=300, latent=latent)
    summary = predict(world.model, few, str(tmp_path / "p"), executor, variance=settings, note=said.append)
    stored = open_prediction(str(tmp_path / "p"))
    exact = world.latent[:FEW] + (0.0 if latent else world.noise)
    lower, upper, variance = (stored.read(name) for name in ("variance_lower", "variance_upper", "variance"))
    assert (lower <= exact * (1 + 1e-9)).all()
    assert (exact <= upper * (1 + 1e-9)).all()
    assert variance.tobytes() == (lower + 0.5 * (upper - lower)).tobytes()
    found = summary.variance
    assert found is not None
    assert (found["met"], found["unmet"], found["computed"]) == (FEW, 0, FEW)
    assert 1 < found["kernels_mean"] < found["kernels_max"] < 300
    assert stored.attributes["variance"] == {
        "gap": None, "basis": 300, "basis_gap": 0.05, "latent": latent, "seed": 0
    }  # fmt: skip
    assert "a basis of its own" in said[-1]
    assert f"for {FEW} samples on" in said[-1]
    # A small limit ends bases before their gap.
    short = predict(
        world.model, few, str(tmp_path / "q"), executor, variance=VarianceSettings(gap=0.05, basis=3)
    ).variance
    assert short is not None
    assert short["kernels_max"] == 3
    assert short["unmet"] > 0


@pytest.mark.long
def test_batches_and_workers_change_no_bits(world: World, few: Dataset, tmp_path: Path) -> None:
    found = []
    for number, (threads, batch) in enumerate([(1, 5), (2, None), (5, 1)]):
        executor, out = LocalExecutor(threads), tmp_path / str(number)
        settings = VarianceSettings(gap=0.05, basis=100, batch_size=batch)
        predict(world.model, few, str(out), executor, variance=settings)
        executor.close()
        found.append(content(out))
    assert found[0] == found[1] == found[2]


def test_other_settings_and_other_ways_are_refused(
    world: World, few: Dataset, executor: BlockExecutor, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"`rank`, `halo` can be set only for a factor that all test samples share"):
        VarianceSettings(basis=10, rank=5, halo=0)
    with pytest.raises(InputError, match="`basis` must be at least 1"):
        VarianceSettings(basis=0)
    little = VarianceSettings(basis=N, memory_bytes=100_000)
    with pytest.raises(MemoryBudgetError, match=r"a basis of 400 samples takes .* Lower `basis`, or raise"):
        predict(world.model, few, str(tmp_path / "p"), executor, variance=little)

    def predicted(out: str, variance: VarianceSettings, asked: Callable[[], bool] | None = None, **place: Any) -> None:
        context = RunContext(executor, interrupted=asked)
        predict(world.model, few, Destination(str(tmp_path / out), **place), context, variance=variance)

    for out, first, second in (
        ("basis", VarianceSettings(basis=50), VarianceSettings()),
        ("factor", VarianceSettings(batch_size=4), VarianceSettings(basis=50)),
    ):
        with pytest.raises(Exception, match="interrupted after"):
            predicted(out, first, iter([False, True, True]).__next__, chunk_rows=4)
        with pytest.raises(InputError, match="was started with .*`basis`.*; repeat it as it was, or `overwrite`"):
            predicted(out, second, resume=True)
        predicted(out, first, resume=True)
