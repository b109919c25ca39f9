"""Intervals from a factor of the whole matrix hold for any rounding within its bounds, and are narrow.

A factor that is kept with a stored model or in a process is used if it is whole and belongs to the model.
"""

from __future__ import annotations

import decimal
import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import dkgp
from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import ModelRecord, open_model
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import InputError, NumericalError, StorageError, StoreError
from dkgp.kernels import SquaredExponential
from dkgp.models.prediction.predict import predict
from dkgp.models.variance.batch import VarianceBounds, relative_gap
from dkgp.models.variance.row_scales import RowScales
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.whole_matrix import FOLDER, WholeFactor, WholeRoundings, keep_whole, kept_tiles
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.cholesky.tile_factor import MemoryTiles, SystemOf, TileContext, TileFactor, TileLayout, substitute
from tests.engine.helpers import content
from tests.models.variance.variance_problems import KINDS, Long, VarianceProblem, draw, exact_in_50_digits, long_kernel
from tests.models.variance.variance_world import TESTS, Counting, N, World

_RUNS = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def one_blas_thread() -> Iterator[None]:
    with single_threaded_blas():
        yield


def whole(
    problem: VarianceProblem, rows: int = 64, place: Any = None, executor: BlockExecutor | None = None
) -> WholeFactor:
    context = BlockContext(f"whole {next(_RUNS)}", ArrayInputs(problem.X), problem.kernel, problem.n)
    layout = TileLayout(problem.n, min(rows, problem.n), "double")
    system = SystemOf(executor or LocalExecutor(1), context, problem.noise_variance)
    factor = TileFactor(system, layout, MemoryTiles() if place is None else place, 2**30, None, expanded=False)
    factor.complete(layout.n_panels)
    scales = RowScales.of(context, problem.noise_variance)
    return WholeFactor(factor.tiles, WholeRoundings(layout, scales, problem.noise_variance))


# ------------------------------------------------------------------------------------------------------------ true


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_contain_the_exact_variance(kind: str, latent: bool) -> None:
    problem = KINDS[kind]
    bounds = whole(problem).solve(problem.T, 1e-3, latent=latent)
    problem.assert_holds(bounds, latent)


@pytest.mark.parametrize("seed", range(12))
def test_intervals_hold_in_50_digits(seed: int) -> None:
    kind = ("normal", "duplicates", "clusters", "outliers", "grid")[seed % 5]
    noise = 10.0 ** -(seed % 9)
    problem = draw(seed, 24, 2, gamma=0.5, noise=noise, kind=kind, variance=10.0 ** (seed % 3 - 1))
    bounds = whole(problem, rows=7).solve(problem.T, 1e-9, latent=True)
    for lower, upper, exact in zip(bounds.lower, bounds.upper, exact_in_50_digits(problem), strict=True):
        assert decimal.Decimal(float(lower)) <= exact <= decimal.Decimal(float(upper))


@pytest.mark.parametrize("kind", ["smooth", "rough", "duplicates", "tiny noise", "large amplitude"])
def test_intervals_are_narrow(kind: str) -> None:
    problem = KINDS[kind]
    bounds = whole(problem).solve(problem.T, 1e-3)
    assert relative_gap(bounds.lower, bounds.upper).max() < 1e-5
    np.testing.assert_allclose(bounds.upper, np.asarray(problem.exact_of(False), dtype=float), rtol=1e-5)


class _Coarse(WholeRoundings):
    """As if float64 had fewer digits."""

    gamma = property(lambda self: 1e-8)  # type: ignore[assignment]
    entry = property(lambda self: 3e-9)  # type: ignore[assignment]


@pytest.mark.covering
@pytest.mark.parametrize("signs", ["plus", "minus", "random", "against"])
@pytest.mark.parametrize("kind", ["smooth", "rough", "many features", "large amplitude"])
def test_the_bounds_hold_for_a_factor_as_bad_as_they_allow(
    kind: str, signs: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L of Kbar + E and L f = k + rho with the largest errors that the proof allows for, in extended precision."""
    problem = KINDS[kind]
    factor = whole(problem, rows=problem.n)
    known = _Coarse(factor.roundings.layout, factor.roundings.scales, problem.noise_variance)
    d = np.sqrt(known.scales.largest) * known.scales.weights
    K = np.asarray(long_kernel(problem.X, problem.X, problem.kernel), dtype=float)
    K[np.diag_indices(problem.n)] += problem.noise_variance
    columns = np.asarray(long_kernel(problem.X, problem.T, problem.kernel), dtype=float)
    for index, exact in enumerate(problem.exact):
        k = columns[:, index]
        v = np.linalg.solve(K, k)
        sign = {
            "plus": np.ones(problem.n),
            "minus": np.ones(problem.n),
            "random": rng.choice([-1.0, 1.0], problem.n),
            "against": np.sign(v) + (v == 0.0),
        }[signs]
        E = (-1.0 if signs == "minus" else 1.0) * 0.99 * known.backward * np.outer(d * sign, d * sign)
        L = np.linalg.cholesky(K + E)
        share = float(np.sqrt(problem.kernel.variance))
        f = scipy.linalg.solve_triangular(L, k, lower=True)
        tau = (known.entry + known.gamma) * share + known.gamma * np.linalg.norm(f)
        rho = (-1.0 if signs == "minus" else 1.0) * 0.99 * tau * d * sign
        tiles = MemoryTiles()
        tiles.write("00000-00000", L)
        context = TileContext(factor.tiles.context, tiles, known.layout, problem.noise_variance)
        bad = WholeFactor(context, known)
        monkeypatch.setattr(WholeFactor, "_columns", lambda self, inputs, threads, c=k + rho: np.array(c)[:, None])
        # A residual has nothing to do with the roundings of the factor; it is attacked below.
        monkeypatch.setattr(WholeFactor, "_tighten_by_residuals", lambda *arguments: None)
        for gap in (1.0, 1e-12):  # without and with the second solve
            bounds = bad.solve(problem.T[index : index + 1], gap, latent=True)
            assert bounds.lower[0] <= exact <= bounds.upper[0]
            assert bounds.upper[0] - bounds.lower[0] < problem.kernel.variance


@pytest.mark.parametrize(("noise", "widest"), [(1e-11, 0.02), (1e-12, 0.2), (1e-13, 1.0)])
@pytest.mark.parametrize("d", [1, 2])
def test_noise_below_the_roundings_of_the_factor_is_proven_by_residuals(noise: float, widest: float, d: int) -> None:
    problem = draw(d, 24, d, gamma=0.5, noise=noise)
    factor = whole(problem, rows=7)
    assert factor.roundings.least == 0.0 or noise > 1e-12
    bounds = factor.solve(problem.T, 1e-9)
    for lower, upper, exact in zip(bounds.lower, bounds.upper, exact_in_50_digits(problem), strict=True):
        assert decimal.Decimal(float(lower)) <= exact + decimal.Decimal(noise) <= decimal.Decimal(float(upper))
    assert relative_gap(bounds.lower, bounds.upper).max() <= widest


@pytest.mark.parametrize("signs", ["plus", "minus", "random", "against"])
@pytest.mark.parametrize("wrong", [0.0, 1e-6, 1e-2])
def test_residuals_prove_whatever_the_factor_and_at_the_largest_errors_of_entries(
    signs: str, wrong: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of K and k off by as much as Lemma 3a allows, and a factor of another matrix."""
    problem = KINDS["smooth"]
    factor = whole(problem, rows=problem.n)
    known = _Coarse(factor.roundings.layout, factor.roundings.scales, problem.noise_variance)
    d = np.sqrt(known.scales.largest) * known.scales.weights
    K = np.asarray(long_kernel(problem.X, problem.X, problem.kernel), dtype=float)
    K[np.diag_indices(problem.n)] += problem.noise_variance
    columns = np.asarray(long_kernel(problem.X, problem.T, problem.kernel), dtype=float)
    noise = rng.normal(size=K.shape)
    tiles = MemoryTiles()
    tiles.write("00000-00000", np.linalg.cholesky(K + wrong * (noise @ noise.T) / problem.n))
    bad = WholeFactor(TileContext(factor.tiles.context, tiles, known.layout, problem.noise_variance), known)
    for index, exact in enumerate(problem.exact):
        k = columns[:, index]
        v = np.linalg.solve(K, k)
        sign = {
            "plus": np.ones(problem.n),
            "minus": -np.ones(problem.n),
            "random": rng.choice([-1.0, 1.0], problem.n),
            "against": np.sign(v) + (v == 0.0),
        }[signs]
        share = float(np.sqrt(problem.kernel.variance))
        off = k + 0.99 * known.entry * share * d * sign
        E = 0.99 * known.entry * np.outer(d, d) * (np.outer(sign, sign) if signs != "plus" else -1.0)
        monkeypatch.setattr(WholeFactor, "_columns", lambda self, inputs, threads, c=off: np.array(c)[:, None])
        monkeypatch.setattr(WholeFactor, "_product", lambda self, w, threads, M=K + E: M @ w)
        highest = np.array([problem.kernel.variance])
        bounds = VarianceBounds(highest * (1.0 + 1e-12), 0.0, 1e-12)
        scale = known.scales.share(highest, problem.T[index : index + 1]) * np.sqrt(known.scales.largest)
        ends = highest, highest * (1.0 + 1e-12)
        bad._tighten_by_residuals(bounds, np.array([0]), problem.T[index : index + 1], ends, scale, 1)
        assert bounds.lower[0] <= exact <= bounds.upper[0]
        w, residual = bad.weights(problem.T[index : index + 1]) if known.least <= 0.0 else (None, None)
        if w is not None:
            assert residual[0] >= np.linalg.norm(K @ w[:, 0] - k)


def test_every_sum_of_a_tile_is_counted() -> None:
    """A term passes through two tiles' own sums at most, and what is added once for each part of a tile before."""
    context = BlockContext(
        f"whole {next(_RUNS)}", ArrayInputs(np.eye(3)), draw(1, 3, 3, gamma=1.0, noise=1.0).kernel, 3
    )
    scales = RowScales.of(context, 1.0)
    few, many = (WholeRoundings(TileLayout(n, 100, "double"), scales, 1.0) for n in (100, 10_000))
    unit = 2.0**-53
    assert few.gamma >= (2 * 100 + 2) * unit
    assert many.gamma >= (2 * 100 + 100) * unit
    assert many.gamma <= 0.2 * 10_000 * unit


# ------------------------------------------------------------------------------------------------------------ solves


@pytest.mark.covering
@pytest.mark.parametrize("count", [1, 2, 37])
@pytest.mark.parametrize("rows", [1, 7, 64, 200])
def test_substitution_against_scipy(count: int, rows: int, rng: np.random.Generator) -> None:
    n = 150 if rows > 1 else 50  # a tile for each entry
    problem = draw(3, n, 2, gamma=1.0, noise=0.1)
    tiles = whole(problem, rows=rows).tiles
    L = np.zeros((n, n))
    for i in range(tiles.layout.n_panels):
        for j in range(i + 1):
            L[slice(*tiles.layout.bounds(i)), slice(*tiles.layout.bounds(j))] = tiles.read(i, j)
    L = np.tril(L)
    np.testing.assert_allclose(L @ L.T, problem.kernel(problem.X, problem.X) + 0.1 * np.eye(n), atol=1e-13)
    right = rng.normal(size=(n, count))
    forward, backward = right.copy(), right.copy()
    substitute(tiles, forward, threads=2)
    substitute(tiles, backward, threads=2, transposed=True)
    np.testing.assert_allclose(forward, scipy.linalg.solve_triangular(L, right, lower=True), rtol=1e-11, atol=1e-12)
    expected = scipy.linalg.solve_triangular(L, right, lower=True, trans=1)
    np.testing.assert_allclose(backward, expected, rtol=1e-10, atol=1e-11)


def test_memory_disk_and_threads_give_the_same_bits(tmp_path: Path, executor: BlockExecutor) -> None:
    problem = draw(4, 200, 3, gamma=1.0, noise=0.01)
    one = whole(problem, rows=30).solve(problem.T, 1e-9)
    several = whole(problem, rows=30, executor=executor).solve(problem.T, 1e-9, threads=2)
    stored = whole(problem, rows=30, place=str(tmp_path / "tiles"), executor=executor).solve(problem.T, 1e-9)
    for other in (several, stored):
        assert (one.lower.tobytes(), one.upper.tobytes()) == (other.lower.tobytes(), other.upper.tobytes())


def test_a_tile_that_is_lost_or_damaged_is_told(tmp_path: Path) -> None:
    problem = draw(4, 100, 2, gamma=1.0, noise=0.01)
    factor = whole(problem, rows=40, place=str(tmp_path / "tiles"))
    file = tmp_path / "tiles" / "00001-00000.tile"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        factor.solve(problem.T, 0.1)
    TileStore(tmp_path / "tiles").remove("00001-00000")
    with pytest.raises(StoreError, match="missing"):
        factor.solve(problem.T, 0.1)


# ------------------------------------------------------------------------------------------------------ predictions


CHOLESKY = VarianceSettings(way="cholesky", gap=1e-6)


def test_a_prediction_is_the_dense_gps(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor, variance=CHOLESKY)
    stored = content(tmp_path / "p")
    lower, upper = (np.frombuffer(stored[name]).reshape(TESTS, 2) for name in ("variance_lower", "variance_upper"))
    exact = world.latent + world.noise
    assert (lower <= exact * (1 + 1e-9)).all()
    assert (exact <= upper * (1 + 1e-9)).all()
    assert summary.variance is not None
    assert (summary.variance["way"], summary.variance["met"]) == ("cholesky", TESTS)
    assert summary.variance["column_passes"] == 0.0
    assert N > TESTS


def test_ways_contradict_each_other_nowhere(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    ends = []
    for way in ("cholesky", "iterative"):
        predict(world.model, world.test, str(tmp_path / way), executor, variance=VarianceSettings(way=way))
        stored = content(tmp_path / way)
        ends.append([np.frombuffer(stored[name]) for name in ("variance_lower", "variance_upper")])
    (lower, upper), (other_lower, other_upper) = ends
    assert (lower <= other_upper).all()
    assert (other_lower <= upper).all()


def test_settings_of_the_iterative_way_do_not_go_with_the_factor() -> None:
    with pytest.raises(InputError, match="`rank` can be set only for the `way` 'iterative'; got 'cholesky'"):
        VarianceSettings(way="cholesky", rank=10)
    with pytest.raises(
        InputError, match="`way` must be one of auto, cholesky, iterative, neighbours, vif; got 'dense'"
    ):
        VarianceSettings(way="dense")


def test_longdouble_is_longer() -> None:
    """Else the reference of this file proves little."""
    assert np.finfo(Long).eps < 1e-18


pytestmark = pytest.mark.filterwarnings("ignore:The feature:UserWarning")

AUTO = VarianceSettings(batch_size=30)


@pytest.fixture
def model(world: World, tmp_path: Path) -> ModelRecord:
    """A copy that a factor may be kept with."""
    shutil.copytree(world.model.url, tmp_path / "model")
    return open_model(str(tmp_path / "model"))


def predicted(
    world: World, model: ModelRecord, executor: BlockExecutor, url: Path, settings: VarianceSettings = AUTO
) -> tuple[dict[str, bytes], list[str], list[str]]:
    """Values, the names of the rounds, the notes."""
    counting, notes = Counting(executor), list[str]()
    predict(model, world.test, str(url), counting, variance=settings, note=notes.append)
    return content(url), counting.names, notes


@pytest.mark.parametrize("memory_bytes", [None, 1000])
def test_a_kept_factor_is_used_and_gives_the_same_bits(
    world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path, memory_bytes: int | None
) -> None:
    """Read into memory, or where there is no room for it, tile by tile."""
    settings = replace(AUTO, memory_bytes=memory_bytes)
    built, rounds, _ = predicted(world, model, executor, tmp_path / "built", replace(AUTO, way="cholesky"))
    assert "kpanel" in rounds
    assert kept_tiles(model) is None
    assert "kept with the model" in keep_whole(model, executor)
    assert kept_tiles(model) == f"{model.url}/{FOLDER}"
    kept, rounds, notes = predicted(world, model, executor, tmp_path / "kept", settings)
    assert "kpanel" not in rounds
    assert kept == built
    assert "loaded in" in notes[-1]
    assert open_model(model.url).fingerprint == model.fingerprint


def test_keeping_one_again_computes_nothing(
    model: ModelRecord, executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_whole(model, executor)

    def write(self: TileStore, name: str, values: Any) -> None:
        raise AssertionError(f"the tile {name} was there")

    monkeypatch.setattr(TileStore, "write", write)
    keep_whole(model, executor)


@pytest.mark.covering
@pytest.mark.parametrize("harm", ["another model's", "damaged"])
@pytest.mark.parametrize("memory_bytes", [None, 1000])
def test_one_of_no_use_is_told_and_not_used(
    world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path, harm: str, memory_bytes: int | None
) -> None:
    built, *_ = predicted(world, model, executor, tmp_path / "built", replace(AUTO, way="cholesky"))
    keep_whole(model, executor)
    folder = Path(model.url) / FOLDER
    if harm == "damaged":
        (tile,) = folder.glob("*.tile")
        tile.write_bytes(tile.read_bytes()[:-8] + b"12345678")
    else:
        description = json.loads((folder / "tiles.json").read_text())
        (folder / "tiles.json").write_text(json.dumps({**description, "noise_variance": 0.06}))
    settings = replace(AUTO, memory_bytes=memory_bytes)
    values, rounds, notes = predicted(world, model, executor, tmp_path / "p", settings)
    # A folder's tiles are looked through one by one, and the damaged one alone is computed again.
    if harm != "damaged" or memory_bytes is None:
        assert "the factor kept with the model is of no use: the tile" in notes[0]
    assert "kpanel" in rounds
    assert values == built


def test_one_that_was_never_finished_is_none(
    world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path
) -> None:
    keep_whole(model, executor)
    TileStore(Path(model.url) / FOLDER).remove("00000-00000")
    assert kept_tiles(model) is None
    _, rounds, notes = predicted(world, model, executor, tmp_path / "p")
    assert "kpanel" in rounds
    assert "of no use" not in notes[0]


def test_one_of_the_model_before_is_replaced(model: ModelRecord, executor: BlockExecutor) -> None:
    keep_whole(model, executor)
    description = Path(model.url) / FOLDER / "tiles.json"
    changed = {**json.loads(description.read_text()), "noise_variance": 1.0}
    description.write_text(json.dumps(changed))
    keep_whole(model, executor)
    assert json.loads(description.read_text())["noise_variance"] == model.noise_variance


def test_a_full_disk_leaves_the_model(
    world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(TileStore, "free_bytes", lambda self: 1000)
        with pytest.raises(StorageError, match="1,000 bytes free"):
            keep_whole(model, executor)
    assert kept_tiles(model) is None
    values, *_ = predicted(world, model, executor, tmp_path / "p")
    assert len(values["variance"]) == 90 * 2 * 8


def test_a_matrix_that_float64_cannot_factor_leaves_nothing(model: ModelRecord, executor: BlockExecutor) -> None:
    flat = replace(model, kernel=SquaredExponential((1e-12,) * 3, 1.0).to_json(), noise_variance=1e-30)
    with pytest.raises(NumericalError, match="breaks down at sample .* or keep no factor"):
        keep_whole(flat, executor)
    assert not (Path(model.url) / FOLDER).exists()


def test_an_estimator_builds_it_once(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    X, T = rng.normal(size=(200, 2)), rng.normal(size=(5, 2))
    y = np.sin(X[:, 0])
    kernel = SquaredExponential((0.5, 0.5), 1.0)
    gp = dkgp.GPRegressor(kernel, noise_variance=0.1, optimizer=None, with_variances=True).fit(X, y)

    def never(*arguments: Any) -> Any:
        raise AssertionError("the factor was there")

    monkeypatch.setattr("dkgp.solvers.cholesky.tile_factor._diagonal", never)
    mean, std = gp.predict(T, return_std=True)
    _, one = gp.predict(T[:1], return_std=True)
    _, latent = gp.predict(np.repeat(T, 4, axis=0), return_std=True, latent=True)
    Z, Z_test = (X - X.mean(axis=0)) / X.std(axis=0), (T - X.mean(axis=0)) / X.std(axis=0)
    k = kernel(Z, Z_test)
    exact = 1.0 - np.einsum("it,it->t", k, np.linalg.solve(kernel(Z, Z) + 0.1 * np.eye(200), k))
    np.testing.assert_allclose(std, np.sqrt(exact + 0.1) * y.std(), rtol=1e-7)
    np.testing.assert_allclose(latent[::4], np.sqrt(exact) * y.std(), rtol=1e-6)
    np.testing.assert_allclose(one, std[:1], rtol=1e-12)
    assert mean.shape == (5,)
