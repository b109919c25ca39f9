"""Selections of the next block, their random draws, and the dense subproblem that they grow."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import cholesky, solve_triangular

from dkgp.errors import InputError, NumericalError
from dkgp.kernels import parse_kernel
from dkgp.operators import DenseKernelOperator
from dkgp.solvers import CyclicSelection, GradientSelection, GreedySelection, Selection
from dkgp.solvers.block_descent import selection as module
from dkgp.solvers.block_descent.rows import SettledGradient
from dkgp.solvers.block_descent.selection import Draws, Subproblem, Turn, best_in_groups, matmat_in_parallel
from tests.solvers.paper import best_by_brute_force, dealt, greedy_approximation
from tests.solvers.problems import Problem, smooth_problem

PROBLEM = smooth_problem(240, 3, targets=2)
OPERATOR = PROBLEM.dense()
SEEDS = range(8)


def fill(
    selection: Selection, size: int, *, problem: Problem = PROBLEM, targets: int = 1, seed: int = 0, iteration: int = 0
) -> Subproblem:
    """One round's active set and step, from a gradient that has no structure that could hide a wrong choice."""
    operator = OPERATOR if problem is PROBLEM else problem.dense()
    subproblem = Subproblem(operator, size, targets)
    selection.fill(subproblem, operator, SettledGradient(gradient(problem, targets, seed)), Turn(size, seed, iteration))
    return subproblem


def gradient(problem: Problem, targets: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal((problem.n, targets))
    return 0.3 * noise - problem.y[:, :targets]


def steepest(targets: int, seed: int) -> int:
    return int(np.argmax(np.sum(gradient(PROBLEM, targets, seed) ** 2, axis=1)))


@pytest.mark.covering
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("candidates", [1, 5, 60])
def test_one_variable_a_step_is_algorithm_2(candidates: int, seed: int) -> None:
    m = 40
    selection = GreedySelection(candidates=candidates, variables_per_step=1)
    subproblem = fill(selection, m, seed=seed, iteration=3)
    draw = dealt(PROBLEM.n, candidates, seed, 3)
    B, step = greedy_approximation(PROBLEM.matrix, gradient(PROBLEM, 1, seed)[:, 0], m, draw)
    assert subproblem.indices.tolist() == B
    assert len(B) == m
    np.testing.assert_allclose(subproblem.solve()[:, 0], step, atol=1e-6)


@pytest.mark.covering
@pytest.mark.parametrize("seed", SEEDS[:3])
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("prefitting", [False, True])
def test_exhaustive_choice_is_the_best_of_all(prefitting: bool, targets: int, seed: int) -> None:
    selection = GreedySelection(exhaustive=True, variables_per_step=1, prefitting=prefitting)
    chosen = fill(selection, 15, targets=targets, seed=seed).indices.tolist()
    g = gradient(PROBLEM, targets, seed)
    for size, variable in enumerate(chosen):
        assert variable == best_by_brute_force(PROBLEM.matrix, g, chosen[:size], prefitting=prefitting)


def test_prefitting_chooses_otherwise_and_decreases_more() -> None:
    def decrease(prefitting: bool) -> float:
        selection = GreedySelection(exhaustive=True, variables_per_step=1, prefitting=prefitting)
        subproblem = fill(selection, 30, problem=smooth_problem(240, 2, noise_variance=0.01, gamma=1.0))
        return -0.5 * float(np.sum(subproblem.gradient[:30] * subproblem.solve()))

    assert decrease(True) > decrease(False)


def test_several_variables_a_step_are_the_best_of_their_own_draws() -> None:
    # The first step of a block, before any variable is chosen: scores are g_i^2 / Kbar_ii.
    selection = GreedySelection(candidates=10, variables_per_step=8)
    chosen = fill(selection, 32, seed=2).indices
    scores = np.sum(gradient(PROBLEM, 1, 2) ** 2, axis=1)
    draw, taken = dealt(PROBLEM.n, 10, 2, 0), list[int]()
    for _ in range(8):
        taken.append(max((i for i in draw(range(PROBLEM.n)) if i not in taken), key=lambda i: scores[i]))
    assert chosen[:8].tolist() == taken


@pytest.mark.parametrize(("size", "per_step"), [(11, 10), (30, 7), (128, None)])
def test_exhaustive_steps_of_several_variables_fill_the_block(size: int, per_step: int | None) -> None:
    chosen = fill(GreedySelection(exhaustive=True, variables_per_step=per_step), size, seed=2).indices
    assert chosen[0] == steepest(1, 2)
    assert len(set(chosen.tolist())) == len(chosen) == size


@pytest.mark.spread(10)
@pytest.mark.covering(2)
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize(
    "selection",
    [
        GreedySelection(candidates=1),
        GreedySelection(candidates=3, variables_per_step=7),
        GreedySelection(candidates=3, variables_per_step=1),
        GreedySelection(),
        GreedySelection(variables_per_step=1000),
        GradientSelection(),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 31, 64, 100])
def test_chosen_are_distinct_and_the_steepest_is_among_them(selection: Selection, size: int, targets: int) -> None:
    for seed in SEEDS:
        chosen = fill(selection, size, targets=targets, seed=seed).indices
        assert 1 <= len(chosen) <= size
        assert len(set(chosen.tolist())) == len(chosen)
        # What the proof of convergence needs (Theorem 2).
        assert steepest(targets, seed) in chosen


def test_greedy_fills_the_block_where_candidates_suffice() -> None:
    assert all(fill(GreedySelection(), 100, seed=seed).size == 100 for seed in SEEDS)


def test_block_of_all_variables() -> None:
    problem = smooth_problem(40)
    for selection in (
        GreedySelection(),
        GreedySelection(candidates=7),
        GreedySelection(candidates=1, variables_per_step=1),
        GreedySelection(exhaustive=True, variables_per_step=1),
    ):
        everyone = fill(selection, 40, problem=problem).indices
        np.testing.assert_array_equal(np.sort(everyone), np.arange(40))


@pytest.mark.parametrize("targets", [1, 2])
def test_result_does_not_depend_on_threads(targets: int) -> None:
    # A step's candidates (60 x 20) are more than one thread's share.
    results = [
        fill(GreedySelection(variables_per_step=20, threads=threads), 80, targets=targets) for threads in (1, 2, None)
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(other.indices, results[0].indices)
        np.testing.assert_array_equal(other.solve(), results[0].solve())


def test_what_a_round_looks_at_was_announced() -> None:
    selection = GreedySelection(candidates=4, variables_per_step=6)
    announced = selection.announced(OPERATOR, Turn(30, 1, 2))
    chosen = fill(selection, 30, seed=1, iteration=2).indices
    assert set(chosen.tolist()) <= {*announced.tolist(), steepest(1, 1)}
    assert GreedySelection(exhaustive=True).announced(OPERATOR, Turn(30, 1, 2)) is None
    assert GradientSelection().announced(OPERATOR, Turn(30, 1, 2)) is None


@pytest.mark.parametrize(("size", "rounds"), [(240, 1), (100, 3), (60, 4), (7, 35)])
def test_cyclic_visits_everything_once_a_cycle(size: int, rounds: int) -> None:
    cycles = []
    for cycle in range(2):
        blocks = [fill(CyclicSelection(), size, iteration=cycle * rounds + i).indices.tolist() for i in range(rounds)]
        cycles.append([variable for block in blocks for variable in block])
        assert sorted(cycles[-1]) == list(range(PROBLEM.n))
    assert cycles[0] != cycles[1]


@pytest.mark.parametrize("targets", [1, 2])
def test_gradient_takes_the_largest(targets: int) -> None:
    chosen = fill(GradientSelection(), 25, targets=targets, seed=4).indices
    norms = np.linalg.norm(gradient(PROBLEM, targets, 4), axis=1)
    assert set(chosen.tolist()) == set(np.argsort(norms)[-25:].tolist())


def test_a_run_that_lost_its_best_takes_its_next_best_or_nothing() -> None:
    candidates = np.array([4, 2, 4, 3, 2, 2])
    scores = np.array([9.0, 5.0, 9.0, 1.0, 7.0, 6.0])
    chosen = np.zeros(5, dtype=bool)
    assert best_in_groups(scores, candidates, 3, chosen).tolist() == [4, 3, 2]
    assert np.flatnonzero(chosen).tolist() == [2, 3, 4]
    assert best_in_groups(scores, candidates, 3, chosen).tolist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "number of candidates must be at least 1; got 0"),
        ({"variables_per_step": 0}, "variables per step must be at least 1; got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GreedySelection(**options)


PROBLEM_SUBPROBLEM = smooth_problem(200, 3, targets=3, variance=1.5)
OPERATOR_SUBPROBLEM = PROBLEM_SUBPROBLEM.dense()
CHUNKS = [1, 7, 2, 30, 1, 11]


def grown(problem: Problem, chunks: list[int], *, single: bool | None, targets: int = 3) -> Subproblem:
    """A subproblem grown by chunks of arbitrary variables."""
    chosen = np.random.default_rng(3).permutation(problem.n)
    subproblem = Subproblem(problem.dense(), sum(chunks) + 5, targets, single=single)
    start = 0
    for chunk in chunks:
        indices = chosen[start : start + chunk]
        subproblem.append(indices, problem.y[indices, :targets])
        start += chunk
    return subproblem


def minimiser(problem: Problem, subproblem: Subproblem) -> np.ndarray:
    """-Kbar_BB^-1 g_B."""
    B = subproblem.indices
    return -np.linalg.solve(problem.matrix[np.ix_(B, B)], subproblem.gradient[: len(B)])


def residual(problem: Problem, subproblem: Subproblem, step: np.ndarray) -> float:
    """Largest |Kbar_BB delta + g_B| relative to |g_B|."""
    B, gradient = subproblem.indices, subproblem.gradient[: subproblem.size]
    return float(np.abs(problem.matrix[np.ix_(B, B)] @ step + gradient).max() / np.abs(gradient).max())


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("single", [False, True])
def test_agrees_with_the_dense_solve(single: bool, targets: int) -> None:
    subproblem = grown(PROBLEM_SUBPROBLEM, CHUNKS, single=single, targets=targets)
    expected = minimiser(PROBLEM_SUBPROBLEM, subproblem)
    assert subproblem.single is single
    assert subproblem.size == sum(CHUNKS)
    assert expected.shape == (sum(CHUNKS), targets)
    np.testing.assert_allclose(subproblem.guide(), expected, atol=1e-3 if single else 1e-11)
    np.testing.assert_allclose(subproblem.solve(), expected, atol=1e-6 if single else 1e-11)
    assert residual(PROBLEM_SUBPROBLEM, subproblem, subproblem.solve()) <= (1e-7 if single else 1e-13)


@pytest.mark.parametrize("single", [False, True])
@given(chunks=st.lists(st.integers(1, 40), min_size=1, max_size=6).filter(lambda chunks: sum(chunks) <= 120))
def test_any_chunks_give_the_same_minimiser(single: bool, chunks: list[int]) -> None:
    subproblem = grown(PROBLEM_SUBPROBLEM, chunks, single=single)
    np.testing.assert_allclose(
        subproblem.solve(), minimiser(PROBLEM_SUBPROBLEM, subproblem), atol=1e-6 if single else 1e-11
    )


@pytest.mark.parametrize("single", [False, True])
def test_guide_is_the_minimiser_at_every_size(single: bool) -> None:
    subproblem = Subproblem(OPERATOR_SUBPROBLEM, 40, 3, single=single)
    assert subproblem.guide().shape == (0, 3)
    for start in range(0, 40, 5):
        indices = np.arange(start, start + 5)
        subproblem.append(indices, PROBLEM_SUBPROBLEM.y[indices])
        np.testing.assert_array_equal(subproblem.indices, np.arange(start + 5))
        np.testing.assert_allclose(
            subproblem.guide(), minimiser(PROBLEM_SUBPROBLEM, subproblem), atol=1e-3 if single else 1e-11
        )


def test_emptied_and_filled_again_it_remembers_nothing() -> None:
    subproblem = grown(PROBLEM_SUBPROBLEM, [20, 20], single=True)
    subproblem.reset()
    assert subproblem.guide().shape == (0, 3)
    indices = np.array([5, 3, 199])
    subproblem.append(indices, PROBLEM_SUBPROBLEM.y[indices])
    fresh = Subproblem(OPERATOR_SUBPROBLEM, 45, 3, single=True)
    fresh.append(indices, PROBLEM_SUBPROBLEM.y[indices])
    np.testing.assert_array_equal(subproblem.solve(), fresh.solve())


def test_refinement_reaches_what_a_float32_factor_alone_does_not() -> None:
    problem = smooth_problem(200, 2, targets=3, noise_variance=3e-3, gamma=0.1)
    subproblem = grown(problem, [80, 40], single=True)
    assert residual(problem, subproblem, subproblem.guide()) > 1e-6
    assert residual(problem, subproblem, subproblem.solve()) <= 1e-6
    assert subproblem.single


def test_precision_of_the_factor_follows_the_noise_variance() -> None:
    assert Subproblem(smooth_problem(50, noise_variance=0.05).dense(), 50, 1).single
    assert not Subproblem(smooth_problem(50, noise_variance=1e-5).dense(), 50, 1).single


def test_entries_that_are_known_to_be_small_allow_a_float32_factor_with_less_noise() -> None:
    problem = smooth_problem(400, 8, noise_variance=5e-4, gamma=1.0)
    operator = problem.dense()
    assert not Subproblem(operator, 300, 1).single
    subproblem = Subproblem(operator, 300, 1, typical_entry=operator.typical_entry())
    assert subproblem.single
    for start in range(0, 300, 50):
        indices = np.arange(start, start + 50)
        subproblem.append(indices, problem.y[indices])
    expected = minimiser(problem, subproblem)
    assert subproblem.single
    np.testing.assert_allclose(subproblem.solve(), expected, atol=1e-6 * np.abs(expected).max())


def test_refinement_that_diverges_is_replaced_by_a_float64_factor() -> None:
    subproblem = grown(PROBLEM_SUBPROBLEM, CHUNKS, single=True)
    subproblem._factor *= np.float32(0.5)  # corrections four times too long
    assert residual(PROBLEM_SUBPROBLEM, subproblem, subproblem.guide()) > 0.9
    np.testing.assert_allclose(subproblem.solve(), minimiser(PROBLEM_SUBPROBLEM, subproblem), atol=1e-11)


def no_other(*arguments: object, **options: object) -> None:
    raise AssertionError("a float64 factor was called for")


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_rough_factor_is_refined_as_long_as_it_takes(sign: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each correction leaves a 26th of a residual of one sign: five of them reach the tolerance, none before."""
    indices = np.arange(60)
    subproblem = Subproblem(OPERATOR_SUBPROBLEM, 60, 1, single=True)
    subproblem.append(indices, np.full((60, 1), sign))
    subproblem._factor *= np.float32(1.02)
    monkeypatch.setattr(module, "Subproblem", no_other)
    assert residual(PROBLEM_SUBPROBLEM, subproblem, subproblem.solve()) <= 1e-7
    np.testing.assert_allclose(subproblem.solve(), minimiser(PROBLEM_SUBPROBLEM, subproblem), atol=1e-6)


@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e6])
def test_refinement_is_relative_to_the_gradient(magnitude: float, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = np.arange(60)
    subproblem = Subproblem(OPERATOR_SUBPROBLEM, 60, 3, single=True)
    subproblem.append(indices, magnitude * PROBLEM_SUBPROBLEM.y[indices])
    monkeypatch.setattr(module, "Subproblem", no_other)
    assert residual(PROBLEM_SUBPROBLEM, subproblem, subproblem.solve()) <= 1e-7


@pytest.mark.parametrize("text", ["rbf", "linear + constant", "polynomial(degree=2)"])
def test_no_block_has_an_eigenvalue_above_the_bound(text: str, rng: np.random.Generator) -> None:
    """Met by the largest trace of so many: a few samples are far out, and each has a noise of its own."""
    X = rng.normal(size=(50, 2)) * np.where(np.arange(50) % 10 == 3, 30.0, 1.0)[:, None]
    kernel, noise = parse_kernel(text, 2), rng.uniform(0.1, 2.0, 50)
    operator = DenseKernelOperator(kernel, noise, X)
    K = kernel(X, X) + np.diag(noise)
    for size in (1, 7, 50):
        bound = module._largest_eigenvalue(operator, size)
        for _ in range(20):
            B = rng.permutation(50)[:size]
            assert np.linalg.eigvalsh(K[np.ix_(B, B)])[-1] <= bound
        if text == "rbf":
            assert bound == pytest.approx(size * K.diagonal().max())
        else:
            assert bound == pytest.approx(np.sort(K.diagonal())[-size:].sum())
    assert module._largest_eigenvalue(operator, 0) == 0.0


@pytest.mark.parametrize(("share", "single"), [(0.98, False), (1.02, True)])
def test_float32_begins_at_twenty_roundings_of_the_largest_eigenvalue(share: float, single: bool) -> None:
    """By the diagonal's largest, noise by sample included, or by the Frobenius norm where that is less."""
    X, size, typical = smooth_problem(60).X, 40, 0.05
    kernel = smooth_problem(60).kernel
    most = {None: 40 * 1.5, typical: np.sqrt(40 * 1.5**2 + (40 * typical) ** 2)}
    for entry, largest in most.items():
        noise = np.full(60, share * 20.0 * 2.0**-23 * largest)
        noise[7] = 0.5
        assert Subproblem(DenseKernelOperator(kernel, noise, X), size, 1, typical_entry=entry).single is single


@pytest.mark.parametrize("chunks", [[30, 30, 30], [150]])
def test_float32_breakdown_goes_on_in_float64(chunks: list[int]) -> None:
    problem = smooth_problem(200, 2, targets=3, noise_variance=1e-8, gamma=0.01)
    subproblem = grown(problem, chunks, single=True)
    assert not subproblem.single
    assert subproblem.size == sum(chunks)
    reference = grown(problem, chunks, single=False)
    np.testing.assert_array_equal(subproblem.indices, reference.indices)
    np.testing.assert_array_equal(subproblem.gradient, reference.gradient)
    assert residual(problem, subproblem, subproblem.solve()) <= 1e-6
    subproblem.reset()
    subproblem.append(np.array([0]), problem.y[[0]])
    np.testing.assert_allclose(subproblem.solve(), -problem.y[[0]], rtol=1e-7)


def test_matrix_that_is_singular_in_float64_is_told() -> None:
    problem = smooth_problem(200, 2, targets=3, noise_variance=1e-18, gamma=0.01)
    message = r"not positive definite at \d+ variables with noise variance 1e-18.*Raise the noise variance, or lower"
    with pytest.raises(NumericalError, match=message):
        grown(problem, [50, 50], single=True)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_half_solve_against_scipy(rows: int, single: bool) -> None:
    subproblem = grown(PROBLEM_SUBPROBLEM, CHUNKS, single=single)
    samples = np.arange(100, 100 + rows)
    K = PROBLEM_SUBPROBLEM.kernel(PROBLEM_SUBPROBLEM.X[samples], PROBLEM_SUBPROBLEM.X[subproblem.indices])
    tile = subproblem.rows(samples)
    assert tile.dtype == (np.float32 if single else np.float64)
    np.testing.assert_allclose(tile, K, atol=1e-5 if single else 1e-13)
    before = tile.copy()
    half = subproblem.half_solve(tile)
    np.testing.assert_array_equal(tile, before)
    B = subproblem.indices
    factor = cholesky(PROBLEM_SUBPROBLEM.matrix[np.ix_(B, B)], lower=True)
    np.testing.assert_allclose(half, solve_triangular(factor, K.T, lower=True).T, atol=1e-4 if single else 1e-12)


def test_features_of_the_active_set_are_in_order_of_selection() -> None:
    subproblem = grown(PROBLEM_SUBPROBLEM, CHUNKS, single=False)
    expected = OPERATOR_SUBPROBLEM.double.prepare(PROBLEM_SUBPROBLEM.X[subproblem.indices])
    features = subproblem.features
    assert features.n == subproblem.size
    np.testing.assert_array_equal(features.values[:, : features.n], expected.values[:, : features.n])


@pytest.mark.parametrize("rows", [1, 511, 512, 513, 1300])
@pytest.mark.parametrize("threads", [1, 2, None])
def test_products_shared_between_threads_are_the_same_bits(
    rng: np.random.Generator, rows: int, threads: int | None
) -> None:
    evaluator = OPERATOR_SUBPROBLEM.single
    A, B = evaluator.prepare(rng.standard_normal((rows, 3))), evaluator.prepare(rng.standard_normal((50, 3)))
    W = rng.standard_normal((50, 2))
    np.testing.assert_array_equal(matmat_in_parallel(evaluator, A, B, W, threads), evaluator.matmat(A, B, W))


@pytest.mark.parametrize(("n", "choices", "kappa"), [(5000, 40, 60), (200, 150, 9), (64, 64, 1), (50, 50, 20)])
def test_subsets_are_those_that_are_dealt_one_number_at_a_time(n: int, choices: int, kappa: int) -> None:
    """Until nobody is left: as many are out as were taken, and the sequence that was foreseen does not suffice."""
    draws, letter, out = Draws(n, choices, kappa, 3, 4), dealt(n, kappa, 3, 4), np.zeros(n, dtype=bool)
    for _ in range(choices):
        left = np.flatnonzero(~out).tolist()
        drawn = draws.take(1, out, len(left)).tolist()
        assert drawn == letter(left)
        assert len(set(drawn)) == len(drawn) == min(kappa, len(left))
        assert not out[drawn].any()
        out[drawn[0]] = True
    assert out.sum() == choices


def test_subsets_of_one_step_are_drawn_apart() -> None:
    draws, letter, out = Draws(300, 6, 50, 0, 1), dealt(300, 50, 0, 1), np.zeros(300, dtype=bool)
    out[::7] = True
    left = np.flatnonzero(~out).tolist()
    runs = draws.take(6, out, len(left)).reshape(6, 50)
    assert runs.tolist() == [letter(left) for _ in range(6)]
    # Six runs of 50 out of 257: some samples are in several of them, and none is twice in one.
    assert len(np.unique(runs)) < runs.size
    assert all(len(set(run)) == 50 for run in runs.tolist())


def test_all_subsets_are_as_likely() -> None:
    """20 subsets of three out of six, two more out: 12,000 draws, chi squared below its 99.9th percentile."""
    out, trials = np.array([False, True, False, False, False, True, False, False]), 12_000
    counts = Counter(tuple(sorted(Draws(8, 1, 3, 0, seed).take(1, out, 6).tolist())) for seed in range(trials))
    subsets = list(combinations(np.flatnonzero(~out).tolist(), 3))
    assert set(counts) == set(subsets)
    expected = trials / len(subsets)
    assert sum((counts[subset] - expected) ** 2 / expected for subset in subsets) < 43.8  # 19 degrees of freedom


def test_sequence_depends_on_seed_and_round_alone_and_is_looked_at_first() -> None:
    def sequence(seed: int, iteration: int) -> np.ndarray:
        return Draws(1000, 50, 7, seed, iteration).sequence

    assert sequence(3, 4).min() >= 0
    assert sequence(3, 4).max() < 1000
    np.testing.assert_array_equal(sequence(3, 4), sequence(3, 4))
    assert not np.array_equal(sequence(3, 4), sequence(3, 5))
    assert not np.array_equal(sequence(3, 4), sequence(4, 4))
    # What is foreseen suffices where few are chosen, and is not much more than what is taken.
    draws, out = Draws(1000, 50, 7, 3, 4), np.zeros(1000, dtype=bool)
    foreseen = set(draws.sequence.tolist())
    for choice in range(50):
        drawn = draws.take(1, out, 1000 - choice)
        assert set(drawn.tolist()) <= foreseen
        out[drawn[0]] = True
    # Half of the choices and half of the subset are there on average, of those drawn at one end and at the other.
    assert len(draws.sequence) == 350 + 350 * (50 + 7) // 1000 + 64
