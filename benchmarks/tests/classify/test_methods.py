"""The paper's own method and spSVM as `dkgp bench classify` runs them, and the tables that are of them alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.data import memory_dataset
from dkgp.errors import UsageError
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.labels import LabelledData
from dkgp_benchmarks.classify.fixed_size import PAPER, FixedSize
from dkgp_benchmarks.classify.job import BenchClassifyJob, run_bench_classify
from dkgp_benchmarks.classify.methods import ABLATION, ABLATION_DEFAULT, DEFAULT_METHODS, MethodSpec
from dkgp_benchmarks.classify.problems import PROBLEMS, Split, load
from dkgp_benchmarks.classify.sparse_rival import SparseMachine, chosen_size
from dkgp_benchmarks.classify.trial import Trial, trial_of


@pytest.fixture
def trial() -> Trial:
    samples = load(PROBLEMS["made-twonorm"], None, 0)
    return trial_of(samples, Split(3, np.arange(120), np.arange(120, 620)), 0)


@pytest.mark.long
def test_the_method_is_train_fixed_size_with_the_papers_settings(trial: Trial) -> None:
    dataset = memory_dataset(trial.inputs, trial.codes, classes=("-1", "+1"))
    settings = FixedSizeSettings(
        pool=36, folds=10, search="profile", isotropic=True, probability=False, seed=trial.seed
    )
    expected = train_fixed_size(LabelledData(dataset, trial.labels), settings, LocalExecutor(1))
    method = MethodSpec.read("scdp-pool").made()
    found = method.tune(trial)
    assert found["pool"] == 36  # 0.3 of 120
    assert found["noise_variance"] == expected.model.noise_variance
    assert found["kernel"] == expected.model.kernel.to_json()
    # With what was found the same model comes again, without a search.
    classifier = method.fit(trial, found)
    assert classifier.size == len(expected.model.prototypes)
    standardised = dataset.standardisation.inputs(trial.test_inputs)
    expected_decisions = expected.model.decisions(standardised)[:, 0]
    np.testing.assert_allclose(classifier.decide(trial.test_inputs), expected_decisions, rtol=1e-9)
    assert np.mean((expected_decisions >= 0.0) == (trial.test_codes == 1)) > 0.93


@pytest.mark.parametrize(
    ("text", "pool", "changed"),
    [
        ("scdp", 120, {}),
        ("scdpp", 120, {"candidates": 59}),
        ("scdpp,candidates=all", 120, {"candidates": None}),
        ("scdp-pool", 36, {}),
        ("scdp-pool,pool=0.1,stop=none", 12, {"stop": None}),
        ("scdp-pool,pool=50,stop=5:0.01,isotropic=no", 50, {"stop": (5, 0.01), "isotropic": False}),
        ("scdp,intercept=selected,max_basis=7", 120, {"intercept": "selected", "max_basis": 7}),
    ],
)
def test_settings_are_read_as_written(text: str, pool: int, changed: dict[str, Any]) -> None:
    method = MethodSpec.read(text).made()
    assert isinstance(method, FixedSize)
    expected = FixedSizeSettings(pool=pool, **{**PAPER, "isotropic": True, "probability": False, **changed})
    assert method.settings_of(120) == expected


def test_a_pool_is_two_thousand_at_most() -> None:
    method = MethodSpec.read("scdp-pool").made()
    assert isinstance(method, FixedSize)
    assert method.settings_of(30_148).pool == 2000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scdp,pool=-1", "pool cannot be '-1'"),
        ("scdp,pool=1.5", "pool cannot be '1.5'"),
        ("scdp,intercept=second", "`intercept` must be one of first, selected, none; got 'second'"),
        ("scdp,isotropic=perhaps", "isotropic cannot be 'perhaps'"),
        ("scdp,stop=10", "stop cannot be '10'"),
    ],
)
def test_settings_that_there_are_not_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"'{text}': .*{message}" if "`" not in message else message):
        MethodSpec.read(text)


@pytest.mark.long
def test_the_sparse_rival_finds_kernel_and_size(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp_benchmarks.classify.sparse_rival.GAMMA_STEPS", (-1.0, 0.0))
    monkeypatch.setattr("dkgp_benchmarks.classify.sparse_rival.NOISE_VARIANCES", (0.1, 1.0))
    monkeypatch.setattr("dkgp_benchmarks.classify.sparse_rival.MOST", 12)
    method = SparseMachine()
    found = method.tune(trial)
    classifier = method.fit(trial, found)
    assert classifier.size == found["size"] <= 12
    assert np.mean((classifier.decide(trial.test_inputs) >= 0.0) == (trial.test_codes == 1)) > 0.9
    assert method.tune(trial) == found


def test_a_size_is_the_smallest_within_a_tenth_of_the_deviation() -> None:
    shares = np.array([[0.5, 0.20, 0.11, 0.10], [0.5, 0.40, 0.31, 0.30]])
    # The least is 0.2 at four, of deviation 0.1414 over the folds: a tenth of it admits three, 0.21, but not two.
    assert chosen_size(shares) == 3
    assert chosen_size(np.array([[0.5, 0.20, 0.12, 0.10], [0.5, 0.40, 0.32, 0.30]])) == 4


def test_default_methods_can_all_be_made() -> None:
    for text in (*DEFAULT_METHODS["5"], *DEFAULT_METHODS["scdpp"], *(method for _, _, method in ABLATION)):
        assert MethodSpec.read(text).made() is not None
    assert all(MethodSpec.read(text).takes_table_5 for text in DEFAULT_METHODS["5"])
    assert ABLATION[0][2] == ABLATION_DEFAULT


@pytest.mark.slow
def test_parameters_and_outliers_have_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("made-twonorm", "made-ringnorm"):
        monkeypatch.setitem(PROBLEMS, name, replace(PROBLEMS[name], n=60, n_test=100))
    job = BenchClassifyJob(tables=("2", "scdpp"), problems=("made-ringnorm",), splits=1, processes=1)
    reporter = SilentReporter()
    document = run_bench_classify(job, reporter)
    assert not reporter.warnings
    assert tables(document)
    parameters, outliers = document["sections"]
    assert [(row["parameter"], row["value"]) for row in parameters["rows"]] == [row[:2] for row in ABLATION]
    assert parameters["rows"][0]["difference"] == 0.0
    few = next(row for row in parameters["rows"] if row["parameter"] == "k_m" and row["value"] == "5")
    assert few["size"] <= 5
    assert [row["method"] for row in outliers["rows"]] == list(DEFAULT_METHODS["scdpp"])
    assert outliers["rows"][0]["difference"] == outliers["rows"][0]["outliers"] == 0
    assert outliers["rows"][1]["paper_error"] == 9.91


@pytest.mark.parametrize("intercept", ["first", "selected"])
def test_a_new_draw_differs_only_where_candidates_are_drawn(trial: Trial, intercept: str) -> None:
    plain = MethodSpec.read(f"scdp-pool,intercept={intercept}").made()
    found = plain.tune(trial)
    assert isinstance(plain, FixedSize)
    judged = plain.fit(trial, found).decide(trial.test_inputs)
    grown = plain.grow(trial, found)
    np.testing.assert_allclose(grown.decide(trial.test_inputs), judged, atol=1e-6)
    # Among all there is nothing to draw: by the recursion the same model as by the triangles of the fit.
    again = MethodSpec.read(f"scdp-pool,intercept={intercept},redraw=yes").made().fit(trial, found)
    np.testing.assert_allclose(again.decide(trial.test_inputs), judged, atol=1e-6)
    drawn = MethodSpec.read(f"scdp-pool,intercept={intercept},redraw=yes,candidates=3").made().fit(trial, found)
    assert drawn.size is not None
    assert drawn.size <= found["cardinality"] + 1
    assert np.abs(drawn.decide(trial.test_inputs) - judged).max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("changed", [{}, {"intercept": "selected"}, {"candidates": 20}])
def test_the_fit_with_what_a_search_found_is_the_search_s_own(trial: Trial, changed: dict[str, Any]) -> None:
    method = FixedSize({"pool": 1.0, **changed})
    found = method.tune(trial)
    searched, standardise = method._train(trial)
    fitted = method.fit(trial, found)
    assert fitted.size == found["cardinality"] == len(searched.model.prototypes)
    own = searched.model.decisions(standardise(trial.test_inputs))[:, 0]
    np.testing.assert_allclose(fitted.decide(trial.test_inputs), own, rtol=0.0, atol=1e-9)
