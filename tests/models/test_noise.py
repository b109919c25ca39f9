"""Noise models and Student's t as values: formulas, independent quadrature, ends, JSON, and refusals."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from scipy import integrate, stats

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.codec import from_json, to_json
from dkgp.data import append_rows, dataset_from_arrays, ingest, memory_dataset, open_model
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.data.stores.manifest import read_manifest
from dkgp.errors import CheckpointError, InputError, StoreError
from dkgp.kernels import Kernel, Matern32, SquaredExponential, White
from dkgp.models import Hyperparameters
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.exact import TrainedModel, save, train, update
from dkgp.models.noise import Noise, NoiseModel, StudentT
from dkgp.models.problem import Problem
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import Checkpointing, ConjugateGradient, GradientInfNorm, MaxIterations, MaxPasses, solve
from tests.covering import few
from tests.models.exact_gp import ExactGP, entry, mp, numbers
from tests.solvers.test_every_solver import CHOICES, SOLVERS

LINEAR = NoiseModel("linear", -2.0, (0.5, -1.0), lowest=0.01, highest=1.5)
GP = NoiseModel(
    "gp",
    -1.0,
    (0.7, -0.4, 0.1),
    lowest=0.02,
    highest=3.0,
    kernel=SquaredExponential(gamma=(0.3, 0.1)),
    basis=((0.0, 0.0), (1.0, -1.0), (0.5, 2.0)),
)


def by_formula(model: NoiseModel, x: np.ndarray) -> float:
    log_variance = model.offset
    for j, weight in enumerate(model.weights):
        if model.basis is None:
            log_variance += weight * x[j]
        else:
            (p, q), z = (0.3, 0.1), model.basis[j]
            log_variance += weight * math.exp(-p * (x[0] - z[0]) ** 2 - q * (x[1] - z[1]) ** 2)
    return min(max(math.exp(log_variance), model.lowest), model.highest)


@pytest.mark.parametrize("model", [LINEAR, GP])
def test_variances_are_those_of_the_formula(model: NoiseModel, rng: np.random.Generator) -> None:
    inputs = 3.0 * rng.standard_normal((5000, 2))
    variances = model.variances(inputs)
    np.testing.assert_allclose(variances, [by_formula(model, x) for x in inputs], rtol=1e-12)
    assert model.lowest <= variances.min() < variances.max() <= model.highest
    np.testing.assert_array_equal(model.beyond_least(inputs), variances - model.lowest)
    # No bit of a row depends on which rows are asked for together.
    np.testing.assert_array_equal(model.variances(inputs[4000:4700]), variances[4000:4700])


def test_a_linear_model_does_not_run_away() -> None:
    ends = LINEAR.variances(np.array([[-1e6, 1e6], [1e6, -1e6], [1e308, -1e308]]))
    np.testing.assert_allclose(ends, [0.01, 1.5, 1.5])


@pytest.mark.parametrize("law", [{"noise_model": LINEAR}, {"noise_model": GP}, {"student_t": StudentT(4.0, 0.3)}])
def test_it_travels_with_hyperparameters_as_json(law: dict[str, Any]) -> None:
    hyperparameters = Hyperparameters(SquaredExponential(gamma=(1.0, 2.0)), 0.6, **law)
    again = Hyperparameters.from_json(json.loads(json.dumps(hyperparameters.to_json(), allow_nan=False)))
    assert again == hyperparameters
    assert not {*law} & {*Hyperparameters(hyperparameters.kernel, 0.1).to_json()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "cubic"}, "linear, gp, student-t; got 'cubic'"),
        ({"offset": math.inf}, "must be finite"),
        ({"weights": [0.1, math.nan]}, "must be finite"),
        ({"weights": ["much"]}, r"`weights\[0\]` must be a number; got 'much'"),
        ({"lowest": 0.0}, "must be positive"),
        ({"lowest": 2.0}, "at most its greatest; got 2 and 1.5"),
        ({"kind": "gp"}, "needs a kernel"),
        ({"offset": None}, "'offset' is missing"),
    ],
)
def test_a_malformed_noise_model_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_json(NoiseModel, {**to_json(LINEAR), **change})


def test_missing_names_and_other_features_are_named() -> None:
    with pytest.raises(InputError, match="a noise model: 'offset', 'weights' are missing; got 'kind', 'lowest'"):
        from_json(NoiseModel, {"kind": "linear", "lowest": 1.0, "highest": 2.0})
    with pytest.raises(InputError, match=r"object; got \[\]"):
        from_json(NoiseModel, [])
    with pytest.raises(InputError, match="is of 2 features; got inputs of shape"):
        LINEAR.variances(np.zeros((3, 5)))
    with pytest.raises(InputError, match="is of 2 features, the kernel of 3"):
        Hyperparameters(SquaredExponential(gamma=(1.0,) * 3), 0.1, noise_model=LINEAR)
    with pytest.raises(InputError, match="as many points of its features as its 3 weights"):
        from_json(NoiseModel, {**to_json(GP), "basis": [[0.0, 0.0]]})


CASES = [StudentT(2.2, 0.01), StudentT(4.0, 0.3), StudentT(60.0, 2.0)]


def convolved(t: StudentT, error: float, latent: float) -> float:
    """The density of an error, by quadrature over the function's value."""
    scale, deviation = math.sqrt(t.scale), math.sqrt(latent)

    def integrand(f: float) -> float:
        return float(stats.t(t.degrees, scale=scale).pdf(error - f) * stats.norm(scale=deviation).pdf(f))

    points = sorted({0.0, error, *(error + k * scale for k in (-5, 5)), *(k * deviation for k in (-5, 5))})
    ends = -12.0 * deviation, 12.0 * deviation
    inside = [point for point in points if ends[0] < point < ends[1]]
    return float(integrate.quad(integrand, *ends, points=inside, limit=400, epsabs=1e-13)[0])


@pytest.mark.covering
@pytest.mark.parametrize("t", CASES)
@pytest.mark.parametrize(("error", "latent"), [(0.0, 0.01), (0.3, 0.5), (-2.0, 0.02), (8.0, 1.0)])
def test_density_is_the_convolution(t: StudentT, error: float, latent: float) -> None:
    found = t.log_density(np.array([error]), np.array([latent]))[0]
    assert found == pytest.approx(math.log(convolved(t, error, latent)), abs=2e-5)


@pytest.mark.parametrize("t", CASES)
def test_density_without_a_function_is_that_of_t(t: StudentT) -> None:
    errors = np.array([0.0, 1e-3, 0.1, -1.0, 30.0])
    expected = stats.t(t.degrees, scale=math.sqrt(t.scale)).logpdf(errors)
    np.testing.assert_allclose(t.log_density(errors, np.zeros(5)), expected, atol=1e-6)


@pytest.mark.parametrize("t", CASES)
def test_scores_are_normal_for_errors_of_the_distribution(t: StudentT) -> None:
    rng = np.random.default_rng(1)
    latent = np.full(4000, 0.2)
    errors = np.sqrt(t.scale) * rng.standard_t(t.degrees, 4000) + np.sqrt(latent) * rng.standard_normal(4000)
    scores = t.normal_scores(errors, latent)
    assert stats.kstest(scores, "norm").pvalue > 1e-3
    assert np.array_equal(np.sign(scores), np.sign(errors))
    exact = stats.norm.isf(stats.t(t.degrees).sf(np.array([0.5, 3.0])))
    found = t.normal_scores(np.array([0.5, 3.0]) * math.sqrt(t.scale), np.zeros(2))
    np.testing.assert_allclose(found, exact, rtol=1e-5)


@pytest.mark.parametrize("t", CASES)
def test_intervals_hold_their_share_of_errors(t: StudentT) -> None:
    latent = np.concatenate([[0.0], np.geomspace(1e-6, 50.0, 200)]) * t.scale
    half = t.half_widths(latent, 1.959963984540054)
    inside = 2.0 * stats.norm.cdf(t.normal_scores(half, latent)) - 1.0
    np.testing.assert_allclose(inside, 0.95, atol=2e-4)
    assert half[0] == pytest.approx(math.sqrt(t.scale) * stats.t(t.degrees).ppf(0.975), rel=1e-5)


@pytest.mark.parametrize("t", CASES)
def test_weights_are_the_mean_precision_given_the_residual(t: StudentT) -> None:
    for residual in (0.0, 0.2, 5.0):
        beyond = t.beyond_least(np.array([residual**2]))
        # lambda given r has a gamma distribution of the shape (nu + 1) / 2 and the rate (nu + r^2 / s2) / 2.
        expected = stats.gamma((t.degrees + 1) / 2, scale=2 / (t.degrees + residual**2 / t.scale)).mean()
        assert t.weights(beyond)[0] == pytest.approx(expected, rel=1e-12)
        assert t.scale / t.weights(beyond)[0] == pytest.approx(t.least + beyond[0], rel=1e-12)
    assert t.variance == pytest.approx(t.scale * stats.t(t.degrees).var(), rel=1e-12)


def test_new_observations_have_the_variance_of_t() -> None:
    t = StudentT(4.0, 0.3)
    model = t.of_observations(3)
    np.testing.assert_allclose(model.variances(np.random.default_rng(0).normal(size=(5, 3))), t.variance)
    assert model.lowest == t.least


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"degrees": 2.0, "scale": 1.0}, "above 2 and finite; got 2.0"),
        ({"degrees": 4.0, "scale": 0.0}, "positive and finite; got 0.0"),
        ({"degrees": "many", "scale": 1.0}, "`degrees` must be a number; got 'many'"),
        ({"degrees": 4.0}, "a t distribution: 'scale' is missing"),
        ([4.0, 1.0], "must be a JSON object"),
    ],
)
def test_a_malformed_distribution_is_refused(document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        StudentT.held(document)


# Known noise of the samples, Kbar = K + s2 I + diag(v_i): every solver, the certificate, the store, checkpoints.
# Against dense algebra on the scale of the targets, and for proofs against 50 digits.


FloatArray = np.ndarray


@dataclass(frozen=True)
class Case:
    """Raw inputs, targets and known noise variances, in the targets' units squared; kernel and s2, standardised."""

    X: FloatArray
    y: FloatArray
    v: FloatArray
    kernel: Kernel
    noise_variance: float

    @property
    def sample_noise(self) -> FloatArray:
        """On the standardised scale."""
        return self.v / self.y.std() ** 2

    def dense(self) -> tuple[FloatArray, FloatArray]:
        """Standardised inputs and alpha, by NumPy and SciPy."""
        Z = (self.X - self.X.mean(axis=0)) / self.X.std(axis=0)
        matrix = self.kernel(Z, Z) + np.diag(self.noise_variance + self.sample_noise)
        targets = (self.y - self.y.mean()) / self.y.std()
        return Z, scipy.linalg.cho_solve(scipy.linalg.cho_factor(matrix), targets)


def cases() -> dict[str, Case]:
    """Noise that grows along an axis; the same places measured well and badly; an instrument that all but failed."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, (240, 2)) * [10.0, 0.1] + [300.0, 0.0]
    v = 0.5 + 4.0 * (X[:, 0] - 280.0)
    y = 500.0 + 40.0 * np.sin(X[:, 0] / 5.0) * np.cos(20.0 * X[:, 1]) + np.sqrt(v) * rng.normal(size=240)
    found = {"growing": Case(X, y, v, SquaredExponential((1.0, 0.7), 1.2), 1e-3)}
    places = rng.normal(size=(80, 3))
    X, v = np.vstack([places, places, places]), np.repeat([1e-6, 1e-2, 3.0], 80)
    y = np.tile(places[:, 0] - places[:, 1] ** 2, 3) + np.sqrt(v) * rng.normal(size=240)
    found["repeated"] = Case(X, y, v, Matern32((0.5, 0.5, 0.2)), 1e-2)
    X = rng.normal(size=(200, 1))
    v = np.where(np.arange(200) % 7 == 0, 1e8, 0.0)
    y = np.tanh(2.0 * X[:, 0]) + np.where(v > 0, 30.0, 0.05) * rng.normal(size=200)
    found["broken"] = Case(X, y, v, SquaredExponential((0.8,), 0.05), 3e-4)
    return found


SAMPLE_NOISE_CASES = cases()
every_case = pytest.mark.parametrize("case", SAMPLE_NOISE_CASES.values(), ids=SAMPLE_NOISE_CASES)


def trained_on(case: Case, context: RunContext | BlockExecutor, **options: Any) -> TrainedModel:
    dataset = memory_dataset(case.X, case.y)
    return train(dataset, case.kernel, case.noise_variance, context, sample_noise=case.sample_noise, **options)


# Parameter CG, which squares the condition number, is a rival and not for such data.
SOLVED_BY = [name for name in SOLVERS if name not in (*CHOICES, "paramcg")]


@pytest.mark.spread(3)
@pytest.mark.covering
@every_case
@pytest.mark.parametrize("name", few(SOLVED_BY, "gbcd", "smo", "pcg", "kcg", "cholesky"))
def test_every_solver_finds_the_dense_solution(case: Case, name: str, executor: LocalExecutor) -> None:
    stopping = GradientInfNorm(1e-6) | MaxPasses(3000.0)
    model = trained_on(case, executor, solver=SOLVERS[name], stopping=stopping)
    Z, alpha = case.dense()
    assert model.summary["converged"]
    assert model.noise_variance == case.noise_variance
    np.testing.assert_array_equal(model.sample_noise, case.sample_noise)
    error = float(np.linalg.norm(model.solution.alpha[:, 0] - alpha))
    assert error <= model.certificate.alpha_error_bound[0]
    places = np.vstack([Z[:30], Z[:30] + 0.05])
    off = np.abs(case.kernel(places, Z) @ (model.solution.alpha[:, 0] - alpha))
    bound = model.certificate.mean_error_bound(case.kernel.diagonal(places))[:, 0]
    assert (off <= bound).all()
    assert bound.max() < 1e-2


def test_without_known_noise_nothing_is_different(executor: LocalExecutor) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    dataset = memory_dataset(case.X, case.y)
    plain = train(dataset, case.kernel, 0.1, executor)
    zero = train(dataset, case.kernel, 0.1, executor, sample_noise=np.zeros(len(case.y)))
    np.testing.assert_allclose(zero.solution.alpha, plain.solution.alpha, rtol=0, atol=1e-2)
    assert plain.sample_noise is None
    assert "sample_noise" not in Problem(dataset, case.kernel, Noise(0.1)).identity()
    column = trained_on(case, executor).solution.alpha
    again = train(
        dataset, case.kernel, case.noise_variance, executor, sample_noise=case.sample_noise[:, None]
    ).solution.alpha
    assert column.tobytes() == again.tobytes()


def test_white_noise_of_the_kernel_joins_the_common_part(executor: LocalExecutor) -> None:
    case = SAMPLE_NOISE_CASES["repeated"]
    dataset = memory_dataset(case.X, case.y)
    model = train(dataset, case.kernel + White(0.09), 0.01, executor, sample_noise=case.sample_noise)
    assert model.noise_variance == 0.01 + 0.09
    one = train(dataset, case.kernel, 0.01 + 0.09, executor, sample_noise=case.sample_noise)
    assert model.solution.alpha.tobytes() == one.solution.alpha.tobytes()
    first = Problem(dataset, case.kernel + White(0.09), Noise.of(0.01, case.sample_noise)).identity()
    assert first == Problem(dataset, case.kernel, Noise.of(0.01 + 0.09, case.sample_noise[:, None])).identity()
    assert first != Problem(dataset, case.kernel, Noise.of(0.01 + 0.09, case.sample_noise + 1e-9)).identity()


@pytest.mark.parametrize(
    ("sample_noise", "message"),
    [
        (np.ones(239), r"has shape \(239,\); expected \(240,\)"),
        (np.ones((240, 2)), r"has shape \(240, 2\)"),
        (np.where(np.arange(240) == 17, -0.1, 1.0), r"is -0\.1 for sample 17, whose noise would be 0\.0"),
        (np.where(np.arange(240) == 3, np.nan, 1.0), "is nan for sample 3"),
        (np.where(np.arange(240) == 239, np.inf, 1.0), "is inf for sample 239"),
    ],
)
def test_noise_that_is_none_is_refused(sample_noise: FloatArray, message: str, executor: LocalExecutor) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    with pytest.raises(InputError, match=message):
        train(memory_dataset(case.X, case.y), case.kernel, 0.1, executor, sample_noise=sample_noise)


def test_samples_that_are_known_better_than_the_common_noise_says(executor: LocalExecutor) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    better = Case(case.X, case.y, case.y.var() * np.linspace(-0.09, 0.3, 240), case.kernel, 0.1)
    model = trained_on(better, executor)
    assert np.linalg.norm(model.solution.alpha[:, 0] - better.dense()[1]) <= model.certificate.alpha_error_bound[0]
    assert model.certificate.noise_variance == 0.1 + better.sample_noise[0]


def test_a_checkpoint_of_other_noise_is_refused(executor: LocalExecutor, tmp_path: Path) -> None:
    case, store = SAMPLE_NOISE_CASES["growing"], CheckpointStore(str(tmp_path))
    dataset = memory_dataset(case.X, case.y)

    def checkpointing(noise: FloatArray | None, *, resume: bool) -> Checkpointing:
        identity = Problem(dataset, case.kernel, Noise.of(case.noise_variance, noise)).identity()
        return Checkpointing(store, 0.0, identity, resume=resume)

    context = RunContext(executor, checkpointing=checkpointing(case.sample_noise, resume=False))
    trained_on(case, context, stopping=MaxIterations(1))
    for noise in (case.sample_noise[::-1], None):
        other = RunContext(executor, checkpointing=checkpointing(noise, resume=True))
        with pytest.raises(CheckpointError, match="another run"):
            train(dataset, case.kernel, case.noise_variance, other, sample_noise=noise)
    going_on = RunContext(executor, checkpointing=checkpointing(case.sample_noise, resume=True))
    assert trained_on(case, going_on).solution.alpha.tobytes() == trained_on(case, executor).solution.alpha.tobytes()


@pytest.mark.parametrize("by_reference", [False, True])
def test_a_store_keeps_the_noise_and_only_then_is_of_the_new_format(
    executor: LocalExecutor, tmp_path: Path, by_reference: bool
) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    dataset = dataset_from_arrays(tmp_path / "data.zarr", case.X, case.y)
    url, other = str(tmp_path / "model.zarr"), str(tmp_path / "other.zarr")
    model = train(dataset, case.kernel, case.noise_variance, executor, sample_noise=case.sample_noise)
    save(model, url, dataset, by_reference=by_reference)
    stored = open_model(url)
    assert stored.noise_variance == case.noise_variance
    np.testing.assert_array_equal(stored.sample_noise, case.sample_noise)
    np.testing.assert_array_equal(stored.noise, case.noise_variance + case.sample_noise)
    assert read_manifest(url, "model")["version"] == 3
    plain = train(dataset, case.kernel, case.noise_variance, executor)
    save(plain, other, dataset)
    assert open_model(other).sample_noise is None
    assert open_model(other).noise == case.noise_variance
    assert read_manifest(other, "model")["version"] == 2
    next((tmp_path / "model.zarr" / "sample_noise" / "c").iterdir()).unlink()
    with pytest.raises(StoreError, match="Chunk sample_noise/c/0"):
        open_model(url)


def test_a_store_refuses_noise_of_other_samples(executor: LocalExecutor, tmp_path: Path) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    dataset = memory_dataset(case.X, case.y)
    model = trained_on(case, executor)
    for noise in (case.sample_noise[:-1], -case.sample_noise):
        with pytest.raises(InputError, match="sample_noise"):
            save(TrainedModel(**{**vars(model), "sample_noise": noise}), str(tmp_path / "a.zarr"), dataset)
    assert not (tmp_path / "a.zarr").exists()


def test_rows_that_are_added_leave_the_known_noise_to_the_others(executor: LocalExecutor, tmp_path: Path) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    table = np.column_stack([case.X, case.y, case.v])
    np.savetxt(tmp_path / "d.csv", table, delimiter=",", header="a,b,y,v", comments="", fmt="%.17g")
    dataset = ingest(tmp_path / "d.csv", tmp_path / "d.zarr", target="y", noise_column="v").train
    problem = (case.kernel, case.noise_variance, executor)
    model = train(dataset, *problem)
    np.testing.assert_allclose(model.sample_noise, case.sample_noise, rtol=1e-12)
    more = append_rows(append_rows(dataset, case.X[:3] + 0.1, case.y[:3]), case.X[3:5] + 0.1, case.y[3:5])
    updated = update(more, *problem, (model.solution.alpha, model.solution.gradient))
    np.testing.assert_array_equal(updated.sample_noise, np.append(model.sample_noise, np.zeros(5)))
    inputs = more.inputs(0, 245)
    matrix = case.kernel(inputs, inputs) + np.diag(case.noise_variance + updated.sample_noise)
    assert np.abs(matrix @ updated.solution.alpha - more.all_targets()).max() <= 1.01e-4


# --- proofs ----------------------------------------------------------------------------------------------------------


def attacks() -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
    """Inputs, targets, and noise by sample: over 24 orders of magnitude, with repeats, with one exact sample."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(30, 2))
    y = np.sin(3.0 * X[:, :1])
    return {
        "24 orders": (X, y, 10.0 ** rng.uniform(-12.0, 12.0, 30)),
        "repeats": (np.vstack([X[:15]] * 2), np.vstack([y[:15], y[:15] + 1.0]), np.repeat([1e-9, 1e3], 15)),
        "one is exact": (X, 1e6 * y, np.where(np.arange(30) == 4, 1e-10, 1.0)),
    }


@pytest.mark.covering
@pytest.mark.parametrize("name", attacks())
@pytest.mark.parametrize("stop", [GradientInfNorm(1e-3), MaxIterations(2), GradientInfNorm(1e-12)])
def test_bounds_hold_in_50_digits(name: str, stop: Any) -> None:
    X, y, noise = attacks()[name]
    kernel = SquaredExponential((0.7, 0.4), 2.0)
    executor = LocalExecutor(1)
    with BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator:
        solution = solve(operator, y, solver=ConjugateGradient(precision="double"), stopping=stop | MaxPasses(60))
        errors = operator.row_errors()
    executor.close()
    certificate = Certificate.of(solution.alpha, solution.gradient, y, noise, 2.0, errors, stepped=solution.stepped)
    places = np.vstack([X[:3], X[:3] + 0.3])
    exact = ExactGP(X, places, numbers(y), kernel, noise)
    # The residual that is evaluated, against the exact one, by the noise's weights.
    off = mp.sqrt(
        mp.fsum(
            (true[0] - mp.mpf(float(g))) ** 2 * mp.mpf(certificate.noise_variance) / mp.mpf(float(s2))
            for true, g, s2 in zip(exact.gradient(solution.alpha), solution.gradient[:, 0], noise, strict=True)
        )
    )
    assert 0.0 < float(off) <= certificate.residual_rounding[0]
    weights, rows, bound = numbers(solution.alpha), numbers(X), certificate.mean_error_bound(np.full(6, 2.0))
    for place, mean, most in zip(numbers(places), exact.mean, bound, strict=True):
        predicted = mp.fsum(entry(kernel, place, x) * weight[0] for x, weight in zip(rows, weights, strict=True))
        assert abs(float(predicted - mean[0])) <= most[0]
