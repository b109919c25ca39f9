"""Eight models that are bad in known ways, each named, and good ones that are left in peace.

Findings about classes: from confusions and calibrations that are made to be right or wrong.

Simpler models against their references: NumPy's least squares, scikit-learn's boosting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_info, threadpool_limits

from dkgp.data import PredictionWriter, dataset_from_arrays, save_model
from dkgp.errors import StoreError
from dkgp.limits import Deadline, limited
from dkgp.models import verdict
from dkgp.models.verdict import FEWEST_SAMPLES, Finding, Residuals, _shares, findings, fit_rivals, label_findings
from tests.models.classification.problems import class_metrics

N, SEEDS = 1500, range(5)
Numbers = np.ndarray
Case = Callable[[np.random.Generator, Numbers], tuple[Numbers, Numbers, Numbers]]


def residuals(case: Case, seed: int, n: int = N, **more: object) -> Residuals:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    truth, means, deviations = case(rng, X)
    return Residuals(truth, means, deviations, X, list("abcd"), **more)  # type: ignore[arg-type]


def kinds(case: Case, seed: int, n: int = N, **more: object) -> set[str]:
    return {finding.kind for finding in findings(residuals(case, seed, n, **more))}


def right(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    mean = np.sin(X[:, 0]) + X[:, 1]
    return mean + 0.3 * rng.normal(size=len(X)), mean, np.full(len(X), 0.3)


def noise_known(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    deviation = 0.1 + 0.4 * (X[:, 2] > 0.0)
    return X[:, 0] + deviation * rng.normal(size=len(X)), X[:, 0], deviation


def large_units(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return tuple(1e6 * values for values in right(rng, X))  # type: ignore[return-value]


def almost_exact(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return X[:, 0] + 1e-7 * rng.normal(size=len(X)), X[:, 0], np.full(len(X), 1e-7)


def narrow(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return X[:, 0] + 0.4 * rng.normal(size=len(X)), X[:, 0], np.full(len(X), 0.3)


def wide(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return X[:, 0] + 0.3 * rng.normal(size=len(X)), X[:, 0], np.full(len(X), 0.5)


def growing(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    mean = np.exp(1.0 + 0.5 * X[:, 0])
    return mean * (1.0 + 0.1 * rng.normal(size=len(X))), mean, np.full(len(X), 0.1 * np.sqrt(np.mean(mean**2)))


def skewed(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return X[:, 0] + rng.exponential(size=len(X)) - 1.0, X[:, 0], np.ones(len(X))


def heavy(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return X[:, 0] + 0.3 * rng.standard_t(2.5, size=len(X)), X[:, 0], np.full(len(X), 0.5)


def not_learned(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return X[:, 0] + 0.2 * X[:, 1] ** 2 + 0.3 * rng.normal(size=len(X)), X[:, 0], np.full(len(X), 0.45)


def two_noises(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    deviation = 0.1 + 0.4 * (X[:, 2] > 0.0)
    return X[:, 0] + deviation * rng.normal(size=len(X)), X[:, 0], np.full(len(X), 0.36)


def nothing(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return rng.normal(size=len(X)), 0.02 * rng.normal(size=len(X)), np.ones(len(X))


@pytest.mark.covering
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (narrow, "overconfident"),
        (wide, "underconfident"),
        (growing, "noise and mean"),
        (skewed, "skewed"),
        (heavy, "heavy tails"),
        (not_learned, "dependence"),
        (two_noises, "noise and input"),
        (nothing, "explains little"),
    ],
)
def test_a_bad_model_is_named(case: Case, kind: str, seed: int) -> None:
    assert kind in kinds(case, seed)


@pytest.mark.covering
@pytest.mark.parametrize("n", [30, 100, N, 10_000])
@pytest.mark.parametrize("case", [right, noise_known, large_units, almost_exact])
def test_a_good_model_is_left_in_peace(case: Case, n: int) -> None:
    for seed in SEEDS:
        assert kinds(case, seed, n) == set()


@pytest.mark.parametrize(
    ("d", "n", "noise", "scale"), [(1, 30, 1e-4, 0.1), (1, 200, 0.05, 0.1), (2, 150, 1e-3, 0.3), (5, 200, 0.01, 1.0)]
)
def test_errors_that_neighbours_share_are_no_fault(d: int, n: int, noise: float, scale: float) -> None:
    """A Gaussian process that is right: with few samples its errors are the function's, smooth, and known to be."""
    alarms = sum(len(findings(drawn(seed, d, d, n, noise, scale))) for seed in range(10))
    assert alarms <= (1 if n == 30 else 0)


def drawn(seed: int, d: int, relevant: int, n: int, noise: float, scale: float) -> Residuals:
    """A Gaussian process of the first features, and 300 predictions by its own kernel from n samples."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n + 300, d))
    R = X[:, :relevant]
    K = np.exp(-((R[:, None] - R[None]) ** 2).sum(-1) / (2.0 * scale**2))
    f = np.linalg.cholesky(K + 1e-9 * np.eye(len(K))) @ rng.normal(size=len(K))
    y = f + np.sqrt(noise) * rng.normal(size=len(K))
    weights = np.linalg.solve(K[:n, :n] + noise * np.eye(n), K[:n, n:])
    variance = 1.0 + noise - np.einsum("ij,ij->j", weights, K[:n, n:])
    share = float(np.mean(1.0 - noise / variance))
    names = [f"x{index}" for index in range(d)]
    return Residuals(y[n:], weights.T @ y[:n], np.sqrt(variance), X[n:], names, latent_share=share)


# Functions almost without noise: of a line, a plane, in eight dimensions, and of two of thirty-two features.
SMOOTH = [(1, 1, 30, 1e-6, 0.1), (2, 2, 200, 1e-6, 0.2), (8, 8, 200, 1e-6, 1.5), (32, 2, 60, 1e-5, 0.4)]


@pytest.mark.parametrize("case", SMOOTH)
def test_error_bars_of_a_function_without_noise_are_judged_by_what_is_independent(case: tuple[Any, ...]) -> None:
    right = [drawn(seed, *case) for seed in range(10)]
    assert not any(findings(judged) for judged in right)
    assert np.mean([judged.latent_share for judged in right]) > 0.5
    assert all(len(judged.truth) / 30 < judged.effective < len(judged.truth) for judged in right)
    narrow = [replace(judged, deviations=0.4 * judged.deviations) for judged in right]
    seen = [{finding.kind for finding in findings(judged)} for judged in narrow]
    assert sum("overconfident" in kinds for kinds in seen) >= 8


def test_independent_errors_of_neighbours_are_counted_and_equal_ones_are_not() -> None:
    rng = np.random.default_rng(4)
    X, ones = rng.normal(size=(1000, 3)), np.ones(1000)
    independent = Residuals(rng.normal(size=1000) + X[:, 0], X[:, 0], ones, X, list("abc"), latent_share=1.0)
    assert 200 < independent.effective < 500  # the upper end of how alike they are takes half
    equal = replace(independent, truth=X[:, 0] + 1.0)
    assert equal.effective < FEWEST_SAMPLES
    # Errors that depend on one feature are alike in its blocks, whatever else is there.
    wave = replace(independent, truth=X[:, 0] + np.sign(X[:, 0]))
    assert wave.effective < FEWEST_SAMPLES
    assert replace(equal, truth=X[:, 0]).effective == 0.0  # no errors at all
    half = replace(equal, latent_share=0.5)
    assert half.effective == 500.0  # the noise's share counts in any case


def test_error_bars_far_wider_than_a_function_without_noise_needs_are_no_fault() -> None:
    """A smooth function, and a noise variance at a lower bound that is far above its errors."""
    exact = drawn(3, 2, 2, 200, 1e-9, 0.8)
    assert findings(replace(exact, deviations=30.0 * exact.deviations, latent_share=1.0)) == []


@pytest.mark.filterwarnings("error")
def test_few_samples_are_not_put_into_blocks() -> None:
    few = residuals(right, 1, FEWEST_SAMPLES - 1, latent_share=0.9)
    assert few.effective == pytest.approx(0.1 * (FEWEST_SAMPLES - 1))


def test_few_samples_tell_nothing() -> None:
    assert kinds(nothing, 0, 29) == set()
    assert kinds(nothing, 0, 200) == {"explains little"}


def test_a_feature_is_named_with_its_share() -> None:
    [finding] = [item for item in findings(residuals(not_learned, 0)) if item.kind == "dependence"]
    assert "'b'" in finding.text
    assert not [name for name in "acd" if f"'{name}'" in finding.text]


def test_a_smooth_function_without_noise_is_judged_by_its_mean_alone() -> None:
    assert kinds(not_learned, 0, noise_free=True) == set()
    assert kinds(nothing, 0, noise_free=True) == {"explains little"}


def test_advice_of_growing_noise_goes_by_the_sign_of_the_target() -> None:
    positive = residuals(growing, 0)
    shifted = Residuals(positive.truth - 5.0, positive.means - 5.0, positive.deviations, positive.inputs, list("abcd"))
    advice = [[item.advice for item in findings(case) if item.kind == "noise and mean"] for case in (positive, shifted)]
    assert "`transform` log" in advice[0][0]
    assert "`transform` yeo-johnson" in advice[1][0]


def test_rivals_that_are_better_are_named() -> None:
    good = residuals(right, 0)
    found = findings(good, {"a linear model": 0.295, "boosting": 0.2, "the mean": 1.0})
    assert [item.kind for item in found] == ["rival"]
    assert "boosting" in found[0].text
    trend = findings(good, {"a linear model": 0.2})
    assert "linear" in trend[0].advice
    # A hundred samples do not tell such errors apart.
    assert findings(residuals(right, 0, 100), {"a linear model": 0.28}) == []


def test_loose_intervals_are_no_evidence_of_wide_error_bars() -> None:
    """True deviations are .3; what was computed only proves them to lie between .3 and .6."""
    loose = residuals(right, 0)
    middle, ends = np.full(N, 0.47), (np.full(N, 0.3), np.full(N, 0.6))
    judged = Residuals(loose.truth, loose.means, middle, loose.inputs, loose.features, ends)
    assert [item.kind for item in findings(judged)] == ["loose intervals"]
    tight = Residuals(loose.truth, loose.means, middle, loose.inputs, loose.features, (middle * 0.99, middle * 1.01))
    assert [item.kind for item in findings(tight)] == ["underconfident"]


def test_without_variances_the_mean_is_judged_by_itself() -> None:
    bad = residuals(narrow, 0)
    assert findings(Residuals(bad.truth, bad.means, None, bad.inputs, bad.features)) == []
    lost = bad.truth + 2.0 * (bad.inputs[:, 3] > 0.0)
    found = findings(Residuals(lost, bad.means, None, bad.inputs, bad.features))
    assert "dependence" in {item.kind for item in found}


def test_shares_are_those_of_an_analysis_of_variance() -> None:
    """Beside scipy's F statistic and its adjusted share, of a feature of few values and one in ten equal groups."""
    rng = np.random.default_rng(3)
    X = np.stack([rng.integers(0, 4, 400).astype(float), rng.normal(size=400)], axis=1)
    values = 0.7 * X[:, 0] + 0.5 * X[:, 1] ** 2 + rng.normal(size=400)
    told = dict(_shares(Residuals(values, 0.0 * values, np.ones(400), X, ["few", "many"]), values, 0.0))
    places = {"few": X[:, 0].astype(int), "many": scipy.stats.rankdata(X[:, 1]).astype(int) * 10 // 401}
    for name, groups in places.items():
        k = len(np.unique(groups))
        parts = [values[groups == group] for group in np.unique(groups)]
        within = sum(float(np.sum((part - part.mean()) ** 2)) for part in parts) / (400 - k)
        assert told[name] == pytest.approx(1.0 - within / values.var(ddof=1), abs=0.01 if name == "many" else 1e-12)
        assert scipy.stats.f_oneway(*parts).pvalue < 1e-4
    assert not _shares(Residuals(values, 0.0 * values, np.ones(400), X, ["few", "many"]), rng.normal(size=400), 0.0)


def test_errors_beyond_all_measure_end_in_words() -> None:
    huge = residuals(right, 0)
    with np.errstate(all="raise"):
        found = findings(Residuals(huge.truth, huge.means + 1e200, huge.deviations, huge.inputs, huge.features))
    assert {item.kind for item in found} >= {"explains little", "overconfident"}


def far_too_narrow(rng: np.random.Generator, X: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return X[:, 0] + 3.0 * rng.normal(size=len(X)), X[:, 0], np.full(len(X), 0.3)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8])
def test_errors_far_beyond_their_bars_are_seen_in_few_effective_samples(share: float) -> None:
    """Thirty samples count as six where four fifths of the variance is the function's own."""
    few = residuals(far_too_narrow, 1, 30, latent_share=share)
    assert "overconfident" in {item.kind for item in findings(few)}
    assert findings(residuals(right, 1, 30, latent_share=share)) == []


def test_a_function_without_noise_has_no_effective_samples_and_no_alarm() -> None:
    assert findings(residuals(right, 1, 30, latent_share=1.0)) == []


LABELS = 2000


def judged(rng: np.random.Generator, claimed: np.ndarray, true: np.ndarray) -> list[Finding]:
    """Findings where the second class has the probability `true` and is claimed to have another."""
    codes = (rng.random(len(true)) < true).astype(np.int64)
    probabilities = np.stack([1.0 - claimed, claimed], axis=1)
    metrics = class_metrics(("no", "yes"), codes, (claimed > 0.5).astype(np.int64), probabilities=probabilities)
    return label_findings(metrics)


@pytest.mark.parametrize("seed", range(8))
def test_calibrated_probabilities_are_left_in_peace(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probability = rng.beta(0.4, 0.4, LABELS)
    assert judged(rng, probability, probability) == []


@pytest.mark.parametrize(("power", "words"), [(3.0, "too sure"), (0.35, "not sure enough")])
def test_probabilities_that_claim_too_much_or_little(rng: np.random.Generator, power: float, words: str) -> None:
    true = rng.beta(0.8, 0.8, LABELS)
    odds = (true / (1.0 - true)) ** power
    [finding] = judged(rng, odds / (1.0 + odds), true)
    assert finding.kind == "calibration"
    assert words in finding.text


def test_labels_at_random_explain_little(rng: np.random.Generator) -> None:
    codes, given = rng.integers(0, 3, LABELS), rng.integers(0, 3, LABELS)
    kinds = [finding.kind for finding in label_findings(class_metrics(("a", "b", "c"), codes, given))]
    assert kinds == ["explains little"]


def test_a_rare_class_that_is_missed(rng: np.random.Generator) -> None:
    codes = (rng.random(LABELS) < 0.03).astype(np.int64)
    never = label_findings(class_metrics(("common", "rare"), codes, np.zeros(LABELS, np.int64)))
    assert [finding.kind for finding in never] == ["explains little", "missed classes"]
    assert "'rare' (never predicted" in never[1].text
    some = np.where(rng.random(LABELS) < 0.1, codes, 0)
    [finding] = label_findings(class_metrics(("common", "rare"), codes[:LABELS], some))[-1:]
    assert "of its samples are recognised" in finding.text
    most = np.where(rng.random(LABELS) < 0.8, codes, 0)
    assert label_findings(class_metrics(("common", "rare"), codes, most)) == []


@pytest.mark.parametrize(("recognised", "count"), [(1, 14), (1, 18), (7, 37), (42, 127)])
def test_a_rare_class_is_judged_from_the_number_of_samples_in_the_guide(recognised: int, count: int) -> None:
    codes = np.concatenate([np.ones(count, np.int64), np.zeros(LABELS, np.int64)])
    named = codes * (np.arange(len(codes)) < recognised)
    few = label_findings(class_metrics(("common", "rare"), codes, named))
    is_enough = recognised * 3 <= count and count >= 18
    assert [finding.kind for finding in few] == ["missed classes"] * is_enough


def test_few_labels_tell_nothing() -> None:
    codes = np.arange(29) % 2
    assert label_findings(class_metrics(("a", "b"), codes, 1 - codes)) == []


NAMES = ("u", "v")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Boosting's own threads spin while they wait: beside other busy processes ten seconds for two hundred rows."""
    with threadpool_limits(1, "openmp"):
        yield


@pytest.fixture
def world(rng: np.random.Generator, tmp_path: Path):  # type: ignore[no-untyped-def]
    """A training set of which a column is the sum of two others, a test set, a model by name, a prediction."""
    X = rng.normal(size=(700, 4)) * [1.0, 5.0, 0.1, 1.0] + [3.0, 0.0, 0.0, 1.0]
    X[:, 3] = X[:, 0] + X[:, 1]
    y = np.stack([X @ [1.0, -2.0, 4.0, 0.5], np.abs(X[:, 1])], axis=1) + 0.3 * rng.normal(size=(700, 2)) + 100.0
    train = dataset_from_arrays(tmp_path / "train", X[:500], y[:500], target_names=NAMES, chunk_rows=64)
    test = dataset_from_arrays(tmp_path / "test", X[500:], y[500:], target_names=NAMES, chunk_rows=64)
    save_model(tmp_path / "model", alpha=np.zeros((500, 2)), dataset=train, kernel={"type": "rbf"}, noise_variance=1.0)
    about = {"model": str(tmp_path / "model"), "model_fingerprint": train.fingerprint}
    writer = PredictionWriter.create(tmp_path / "p", 200, NAMES, ("mean",), attributes=about)
    writer.write(0, mean=np.zeros((200, 2)))
    return X, y, train, test, writer.commit()


def test_errors_are_those_of_the_references(world, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    X, y, _, test, prediction = world
    monkeypatch.setattr(verdict, "MOST_VALUES", 4 * 170)
    notes: list[str] = []
    fitted = fit_rivals(prediction, test, notes.append)
    design = np.c_[np.ones(700), X]
    weights = np.linalg.lstsq(design[:500], y[:500], rcond=None)[0]
    third = slice(0, 500, 3)
    for t, name in enumerate(NAMES):
        boosting = HistGradientBoostingRegressor(random_state=0).fit(X[:500][third], y[:500, t][third]).predict(X[500:])
        expected = {
            verdict.MEAN: y[:500, t].mean(),
            verdict.LINEAR: design[500:] @ weights[:, t],
            verdict.BOOSTING: boosting,
        }
        for rival, means in expected.items():
            error = np.sqrt(np.mean((y[500:, t] - means) ** 2))
            # Trees split between standardised values, which are rounded.
            assert fitted.rmse_raw[name][rival] == pytest.approx(error, rel=1e-3 if rival == verdict.BOOSTING else 1e-9)
    assert (fitted.training_rows, fitted.boosting_rows) == (500, 167)
    assert "167 of 500 training rows" in notes[0]
    monkeypatch.undo()
    whole = fit_rivals(prediction, test, notes.append)
    assert (whole.training_rows, whole.boosting_rows) == (500, 500)
    assert "all 500 training rows" in notes[1]


@pytest.mark.parametrize("slowness", [1.0, 2.0])
def test_boosting_has_one_thread_on_a_busy_machine(world, slowness: float, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    *_, test, prediction = world
    threads: list[int] = []

    def recorded(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            found = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "openmp"]
            threads.append(max(found))
            return method(*arguments)

        return call

    for name in ("fit", "predict"):
        method = getattr(HistGradientBoostingRegressor, name)
        monkeypatch.setattr(HistGradientBoostingRegressor, name, recorded(method))
    with threadpool_limits(3, "openmp"), limited(Deadline(np.inf, np.inf, slowness=slowness)):
        fit_rivals(prediction, test, print)
    assert set(threads) == {1 if slowness > 1.0 else 3}


def test_without_scikit_learn_there_is_no_boosting(world, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    *_, test, prediction = world
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert set(fit_rivals(prediction, test, print).rmse_raw["u"]) == {verdict.MEAN, verdict.LINEAR}


def test_a_training_set_that_has_changed_is_refused(world, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    X, y, _, test, prediction = world
    dataset_from_arrays(tmp_path / "train", X[:400], y[:400], target_names=NAMES, overwrite=True)
    with pytest.raises(StoreError, match="changed since"):
        fit_rivals(prediction, test, print)


def test_without_variances_nothing_is_said_of_error_bars() -> None:
    of = residuals(growing, 0)
    without = [finding for finding in findings(replace(of, deviations=None)) if finding.kind.startswith("noise and")]
    assert without
    assert not [finding for finding in without if "bars" in finding.text or "Intervals" in finding.advice]
    assert any("the error bars do not follow it" in finding.text for finding in findings(of))


def test_a_coverage_in_its_range_is_not_too_wide() -> None:
    """Test rows that repeat training rows: 40 errors of nearly zero, where a coverage of 100 % is no evidence."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 1))
    [finding] = findings(Residuals(X[:, 0] + 1e-4 * rng.normal(size=40), X[:, 0], np.full(40, 0.3), X, ["a"]))
    assert finding.kind == "underconfident"
    assert "variances are too large" in finding.text
    assert "is in its range" in finding.text
    assert "test rows repeat training rows" in finding.advice
