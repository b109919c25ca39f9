"""Options in JSON to jobs and back: types, ranges, names, and the places a job touches."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import ClusterOptions
from dkgp.commands.classify import ClassifyJob
from dkgp.commands.evaluate import EvaluateJob
from dkgp.commands.ingest import IngestJob
from dkgp.commands.predict.job import PredictJob
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.sparse import SparseJob
from dkgp.commands.train import TrainJob
from dkgp.commands.tune import TuneJob
from dkgp.data import TableOptions
from dkgp.errors import InputError, StoreError, UsageError
from dkgp.kriging.commands.options import SampleColumns
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.sparse.train import SparseSettings
from dkgp.models.variance.settings import VarianceRequest
from dkgp.service.specification import (
    COMMANDS,
    job_from_options,
    job_paths,
    options_from_job,
    options_schema,
    run_job,
)

TRAIN = {"dataset": "/d.zarr", "hyper": "/h.json", "out": "/m.zarr"}
TUNE = {"dataset": "/d.zarr", "out": "/h.json"}
PREDICT = {"model": "/m.zarr", "dataset": "/d.zarr", "out": "/p.zarr"}
EVALUATE = {"prediction": "/p.zarr", "dataset": "/d.zarr"}
SPARSE = {"dataset": "/d.zarr", "hyper": "/h.json", "out": "/s.zarr"}
CLASSIFY = {"dataset": "/d.zarr", "out": "/c.zarr"}
FIT: dict[str, Any] = {"ingestion": {"sources": ["/t.csv"], "targets": ["price"]}, "out": "/f"}
SMALLEST: dict[str, dict[str, Any]] = {
    "train": TRAIN,
    "sparse": SPARSE,
    "classify": CLASSIFY,
    "tune": TUNE,
    "predict": PREDICT,
    "evaluate": EVALUATE,
    "fit": FIT,
    "krige fit": {"source": "/t.csv", "samples": {"target": "zinc"}, "out": "/f.zarr"},
    "krige map": {"source": "/t.csv", "samples": {"target": "zinc"}, "out": "/z.tif"},
    "krige grid": {"model": "/f.zarr", "out": "/z.tif"},
    "krige blocks": {"model": "/f.zarr", "out": "/b.csv"},
    "krige simulate": {"model": "/f.zarr", "out": "/s.zarr"},
}


@pytest.mark.parametrize("command", COMMANDS)
def test_smallest_options_make_the_command_lines_defaults_and_come_back(command: str) -> None:
    job = job_from_options(command, SMALLEST[command])
    fields: dict[str, Any] = dict(SMALLEST[command])
    if command == "fit":
        fields["ingestion"] = IngestJob(("/t.csv",), targets=("price",))
    if "samples" in fields:
        fields["samples"] = SampleColumns("zinc")
    assert job == type(job)(**fields)
    assert options_from_job(job) == SMALLEST[command]


def test_nested_options_become_their_dataclasses() -> None:
    solver = {"tolerance": 1, "block_size": 20, "solver": "bcdc"}
    job = job_from_options("train", {**TRAIN, "solver": solver, "memory_limit_bytes": 2**32})
    assert job == TrainJob(
        "/d.zarr", "/h.json", "/m.zarr", SolverOptions("bcdc", block_size=20, tolerance=1.0), memory_limit_bytes=2**32
    )
    settings = {"method": "sggp", "gap": 0.02, "per_round": 1}
    sparse = job_from_options("sparse", {**SPARSE, "settings": settings, "basis_size": 50})
    assert sparse == SparseJob(**SPARSE, settings=SparseSettings("sggp", gap=0.02, per_round=1), basis_size=50)
    assert options_from_job(sparse) == {**SPARSE, "settings": settings, "basis_size": 50}
    assert job_from_options("sparse", {**SPARSE, "basis_size": "auto", "target_distance": 0.1}).basis_size == "auto"
    settings = {"pool": 50, "stop": [5, 0.01], "noise_variances": [0.1, 1.0]}
    classify = job_from_options("classify", {**CLASSIFY, "settings": settings, "class_weight": ["a=2"]})
    expected = FixedSizeSettings(pool=50, stop=(5, 0.01), noise_variances=(0.1, 1.0))
    assert classify == ClassifyJob(**CLASSIFY, settings=expected, class_weight=("a=2",))
    assert options_from_job(classify) == {**CLASSIFY, "settings": settings, "class_weight": ["a=2"]}
    options = {**CLASSIFY, "method": "gp", "link": "probit", "basis_size": 50, "certify": True}
    assert options_from_job(job_from_options("classify", options)) == options
    # Variances with every default are not the same as none.
    with_variances = job_from_options("predict", {**PREDICT, "variance": {}})
    assert with_variances == PredictJob(**PREDICT, variance=VarianceRequest())
    assert job_from_options("predict", {**PREDICT, "variance": None}) == PredictJob(**PREDICT)


def test_all_files_that_kriging_reads_are_places_of_the_job() -> None:
    options = {**SMALLEST["krige fit"], "drift": ["dist=/d.tif"], "variogram": {"variogram": "/v.json"}}
    read = {(path.field, path.url) for path in job_paths("krige fit", options) if path.access == "read"}
    assert read == {("source", "/t.csv"), ("drift", "/d.tif"), ("variogram", "/v.json")}
    written = {path.url for path in job_paths("krige fit", options) if path.access == "write"}
    assert written == {"/f.zarr", "/f.zarr.checkpoint"}
    with pytest.raises(InputError, match="covariates: expected an absolute path"):
        job_from_options("krige grid", {**SMALLEST["krige grid"], "covariates": ["dist=d.tif"]})


def test_the_cluster_is_the_services_own() -> None:
    job = TrainJob(**TRAIN, cluster=ClusterOptions(kind="processes", workers=3))
    assert options_from_job(job) == TRAIN
    with pytest.raises(UsageError, match=r"cluster: .*service's own cluster"):
        job_from_options("train", {**TRAIN, "cluster": {"kind": "local"}})


paths = st.text(st.characters(categories=["L", "N"], include_characters="-_. /"), max_size=20).map("/{}".format)
counts = st.integers(1, 10**9)
positive = st.floats(1e-12, 1e12) | st.integers(1, 10**9)


@given(
    st.fixed_dictionaries(
        {"dataset": paths, "hyper": paths, "out": paths},
        optional={
            "by_reference": st.booleans(),
            "warm_start": paths | st.none(),
            "checkpoint": paths | st.none(),
            "checkpoint_seconds": positive,
            "memory_limit_bytes": counts | st.none(),
            "resume": st.booleans(),
            "overwrite": st.booleans(),
            "solver": st.fixed_dictionaries(
                {},
                optional={
                    "block_size": counts | st.just("auto"),
                    "candidates": counts,
                    "memory": st.integers(0, 100),
                    "precision": st.sampled_from(["mixed", "double"]),
                    "seed": st.integers(0, 2**31),
                    "tolerance": positive,
                    "max_passes": positive | st.none(),
                },
            ),
        },
    )
)
def test_every_job_comes_back_from_its_options(options: dict[str, Any]) -> None:
    job = job_from_options("train", options)
    smallest = options_from_job(job)
    assert job_from_options("train", smallest) == job
    assert options_from_job(job_from_options("train", smallest)) == smallest
    given_solver = options.get("solver", {})
    assert all(getattr(job.solver, name) == value for name, value in given_solver.items())  # type: ignore[union-attr]


names = st.text(st.characters(categories=["L", "N"], include_characters="*?._[]"), min_size=1, max_size=12)


@given(
    st.fixed_dictionaries(
        {"dataset": st.just("/d.zarr"), "out": st.just("/h.json")},
        optional={
            "kernel": st.sampled_from(["rbf", "matern32 + linear"]),
            "subset": st.integers(2, 10**6),
            "subsets": st.integers(2, 100),
            "objective": st.just("loo"),
            "bounds": st.lists(names.map("{}=0.1:10".format), min_size=1, max_size=3, unique=True),
            "fixed": st.tuples(names, st.floats(1e-6, 1e3)).map(lambda pair: [f"{pair[0]}={pair[1]}"]),
            "priors": st.just(["gamma*=lognormal(0.1, 1)", "noise_variance=lognormal(0.01, 2)"]),
            "start": st.just("/start.json"),
            "holdout": st.floats(0.01, 0.99),
            "plot": st.just("/scales.png"),
            "learn_variance": st.just(True),
        },
    )
    | st.fixed_dictionaries(
        {"dataset": st.just("/d.zarr"), "out": st.just("/h.json")},
        optional={
            "likelihood": st.sampled_from(["logit", "probit", "softmax"]),
            "subsets": st.integers(2, 100),
            "folds": st.integers(2, 20),
        },
    )
)
def test_options_of_a_search_come_back_as_they_were(options: dict[str, Any]) -> None:
    job = job_from_options("tune", options)
    assert isinstance(job, TuneJob)
    assert options_from_job(job) == options


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("train", {"dataset": "/d", "out": "/m"}, "hyper: this option is required"),
        ("train", {**TRAIN, "solvr": {}}, "solvr: .*did you mean 'solver'"),
        ("train", {**TRAIN, "solver": {"tolerence": 1}}, r"solver\.tolerence: .*did you mean 'solver\.tolerance'"),
        ("train", {**TRAIN, "solver": {"block_size": "12"}}, r"solver\.block_size: .*valid integer.*got '12'"),
        ("train", {**TRAIN, "solver": {"block_size": 4.0}}, r"solver\.block_size: .*got 4\.0"),
        ("train", {**TRAIN, "solver": {"tolerance": True}}, r"solver\.tolerance: .*got True"),
        ("train", {**TRAIN, "solver": {"solver": "newton"}}, r"solver\.solver: .*'gbcd'.*got 'newton'"),
        ("train", {**TRAIN, "solver": [1]}, "solver: .*object"),
        ("train", {**TRAIN, "resume": 1}, "resume: .*boolean"),
        ("train", {**TRAIN, "dataset": 12}, "dataset: .*string.*got 12"),
        ("train", {**TRAIN, "solver": {"exhaustive": True, "solver": "bcdc"}}, "belongs to the solver gbcd"),
        ("train", {**TRAIN, "plot": "/a.png", "log_json": "/a.png"}, "same file"),
        ("tune", {**TUNE, "subset": None}, "subset: .*got None"),
        ("tune", {**TUNE, "bounds": "gamma*=1:2"}, "bounds: expected a valid (array|tuple)"),
        ("tune", {**TUNE, "bounds": ["gamma*=2:1"]}, "LOW must be below HIGH"),
        ("tune", {**TUNE, "fixed": ["noise_variance"]}, "`fixed` expects NAME=VALUE"),
        ("tune", {**TUNE, "priors": ["gamma*=uniform(0, 1)"]}, "lognormal"),
        ("tune", {**TUNE, "objective": "rmse"}, "objective: expected 'likelihood', 'loo', 'bound', 'fitc' or 'vif'"),
        ("tune", {**TUNE, "objective": "bound", "subset": 100}, "leave out `subset`"),
        ("tune", {**TUNE, "basis_size": 100}, "`basis_size` is for the objectives"),
        (
            "tune",
            {**TUNE, "likelihood": "gauss"},
            "likelihood: expected 'logit', 'probit', 'softmax', 'gaussian', 'student-t' or 'auto'",
        ),
        ("tune", {**TUNE, "likelihood": "logit", "objective": "loo"}, "`objective` loo is for regressions"),
        ("tune", {**TUNE, "subsets": 2.5}, "subsets: expected a valid integer"),
        ("tune", {**TUNE, "cluster": {"kind": "none"}}, "service's own cluster"),
        ("cook", TRAIN, "train, sparse, classify, tune, predict, evaluate, fit"),
        ("tune", [], "JSON object"),
        ("tune", {**TUNE, "seed": {1, 2}}, "seed: expected JSON"),
        ("sparse", {**SPARSE, "basis_size": "many"}, "basis_size: .*expected 'auto'"),
        ("sparse", {**SPARSE, "basis_size": "auto"}, "grows until"),
        ("sparse", {**SPARSE, "settings": {"per_round": 3}}, "`per_round` belongs to a greedy basis"),
        ("sparse", {**SPARSE, "given_basis": "/b.npy", "basis_size": 5}, "leave out `basis_size`"),
        ("sparse", {**SPARSE, "plot": "/b.png"}, "`plot` needs a growing basis"),
        ("classify", {**CLASSIFY, "method": "svm"}, "method: .*'fixed-size', 'exact', 'logistic' or 'gp'"),
        ("classify", {**CLASSIFY, "given_noise": True}, "`given_noise` uses the noise variance of `hyper`"),
        ("classify", {**CLASSIFY, "by_reference": True}, "`by_reference` belongs to `method` exact"),
        ("classify", {**CLASSIFY, "method": "exact", "settings": {"pool": 3}}, "`pool` belongs to `method` fixed-size"),
        ("classify", {**CLASSIFY, "class_weight": ["balanced", "a=2"]}, "Leave out the other weights, or balanced"),
        ("classify", {**CLASSIFY, "link": "probit"}, "`link` belongs to `method` logistic or gp"),
        ("classify", {**CLASSIFY, "method": "logistic", "basis": "uniform"}, "set its number of samples"),
        ("classify", {**CLASSIFY, "method": "gp", "link": "cloglog"}, "link: expected 'logit' or 'probit'"),
    ],
)
def test_wrong_types_and_names_are_refused_by_field(command: str, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        job_from_options(command, options)


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("train", {**TRAIN, "solver": {"tolerance": 0}}, "solver: the tolerance must be finite and above 0"),
        ("train", {**TRAIN, "solver": {"max_passes": -1.0}}, "solver: the number of passes"),
        ("train", {**TRAIN, "solver": {"block_size": 0}}, "solver: the block size"),
        ("train", {**TRAIN, "solver": {"candidates": 0}}, "solver: the number of candidates"),
        ("train", {**TRAIN, "solver": {"seed": -1}}, "solver: the seed"),
        ("train", {**TRAIN, "checkpoint_seconds": -1.0}, "checkpoint_seconds"),
        ("train", {**TRAIN, "memory_limit_bytes": 0}, "memory_limit_bytes"),
        ("train", {**TRAIN, "plot": "/a.jpeg"}, r"plot: .*\.png"),
        ("train", {**TRAIN, "log_json": "s3://bucket/log"}, "`log_json` needs a local file"),
        ("sparse", {**SPARSE, "settings": {"method": "svm"}}, "settings: `method` must be one of"),
        ("sparse", {**SPARSE, "settings": {"basis": "best"}}, "settings: `basis` must be one of"),
        ("sparse", {**SPARSE, "settings": {"gap": 0.1}}, "settings: .*greedy basis"),
        ("sparse", {**SPARSE, "settings": {"method": "sggp", "candidates": 0}}, "`candidates` must be at least 1"),
        ("sparse", {**SPARSE, "basis_size": 0}, "`basis_size` must be at least 1; got 0"),
        (
            "classify",
            {**CLASSIFY, "settings": {"search": "best"}},
            "settings: `search` must be one of shared, grid",
        ),
        ("classify", {**CLASSIFY, "settings": {"prototypes": "best"}}, "prototypes.*best"),
        ("classify", {**CLASSIFY, "settings": {"seed": -1}}, "seed"),
        ("classify", {**CLASSIFY, "tolerance": 0.0}, "`tolerance` must be positive and finite; got 0"),
        ("classify", {**CLASSIFY, "method": "logistic", "gap": 0.0}, "`gap` must be positive and finite; got 0"),
        ("classify", {**CLASSIFY, "method": "logistic", "regularisation": -1.0}, "`regularisation` must be positive"),
        ("predict", {**PREDICT, "product_error": 0.0}, "must be a positive finite number, auto or none"),
        ("classify", {**CLASSIFY, "class_weight": ["a=-1"]}, "`class_weight` must be positive and finite; got -1"),
        ("classify", {**CLASSIFY, "checkpoint_seconds": -1.0}, "checkpoint_seconds"),
        ("sparse", {**SPARSE, "target_distance": -1.0}, "`target_distance` must be positive"),
        ("sparse", {**SPARSE, "checkpoint_seconds": -1.0}, "checkpoint_seconds"),
        ("sparse", {**SPARSE, "memory_limit_bytes": 0}, "memory_limit_bytes"),
        ("sparse", {**SPARSE, "given_basis": "b.npy"}, "given_basis: expected an absolute path"),
        ("tune", {**TUNE, "subset": 1}, "`subset` must be at least 2"),
        ("tune", {**TUNE, "subsets": 0}, "`subsets` must be at least 1"),
        ("tune", {**TUNE, "holdout": 1.0}, "holdout must be a fraction"),
        ("tune", {**TUNE, "folds": 1}, "`folds` must be from 2"),
        ("tune", {**TUNE, "folds": 3000}, "`folds` must be from 2 to the number of samples in a subset, 2000"),
        ("tune", {**TUNE, "plot": "/scales.txt"}, "plot: .*png"),
        ("tune", {**TUNE, "start": "hyper.json"}, "start: expected an absolute path"),
        ("tune", {**TUNE, "restarts": 0}, "`restarts` must be at least 1"),
        ("tune", {**TUNE, "seed": -1}, "seed"),
        ("tune", {**TUNE, "tolerance": float("nan")}, "tolerance: expected a finite number"),
        ("tune", {**TUNE, "subset": 2**70}, "subset: expected a number below"),
        ("tune", {**TUNE, "out": "x" * 5000}, "out: at most 4,096 characters"),
        ("tune", {**TUNE, "out": "/a\0b"}, "out: .*control characters"),
        ("predict", {**PREDICT, "variance": {"gap": -0.1}}, "variance: `gap` must be positive"),
        ("predict", {**PREDICT, "variance": {"rank": 0}}, "variance: `rank` must be at least 1"),
        ("predict", {**PREDICT, "chunk_rows": 0}, "chunk_rows"),
        ("evaluate", {**EVALUATE, "plot": "/a.gif"}, "plot: "),
        ("evaluate", {**EVALUATE, "dataset": "d.zarr"}, "dataset: expected an absolute path.*got 'd.zarr'"),
        ("evaluate", {**EVALUATE, "dataset": "~/d.zarr"}, "dataset: expected an absolute path"),
        ("evaluate", {**EVALUATE, "dataset": "file://d.zarr"}, "dataset: expected an absolute path"),
        ("evaluate", {**EVALUATE, "dataset": ""}, "dataset: expected an absolute path"),
        ("evaluate", {**EVALUATE, "dataset": "memory://d"}, "dataset: .*valid only within one process"),
        ("evaluate", {**EVALUATE, "dataset": "simplecache::s3://b/d"}, "dataset: .*valid only within one process"),
    ],
)
def test_values_out_of_range_are_refused_as_the_command_would(command: str, options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        job_from_options(command, options)


def test_paths_are_absolute_in_one_spelling_with_the_checkpoints_default_place() -> None:
    found = {path.field: (path.url, path.access) for path in job_paths("train", {**TRAIN, "out": "/a/../m.zarr/"})}
    assert found == {
        "dataset": ("/d.zarr", "read"),
        "hyper": ("/h.json", "read"),
        "out": ("/m.zarr", "write"),
        "checkpoint": ("/m.zarr.checkpoint", "write"),
    }
    named = {path.field: path.url for path in job_paths("train", {**TRAIN, "checkpoint": "s3://b/c", "plot": "/x.png"})}
    assert named["checkpoint"] == "s3://b/c"
    assert named["plot"] == "/x.png"
    sparse = {path.field: (path.url, path.access) for path in job_paths("sparse", {**SPARSE, "given_basis": "/b.npy"})}
    assert sparse["given_basis"] == ("/b.npy", "read")
    assert sparse["checkpoint"] == ("/s.zarr.checkpoint", "write")
    classify = {path.field: (path.url, path.access) for path in job_paths("classify", {**CLASSIFY, "hyper": "/h.json"})}
    assert classify["hyper"] == ("/h.json", "read")
    assert classify["checkpoint"] == ("/c.zarr.checkpoint", "write")


def test_the_places_that_a_search_touches() -> None:
    options = {**TUNE, "start": "/start.json", "plot": "/scales.png"}
    found = {path.field: (path.url, path.access) for path in job_paths("tune", options)}
    assert found == {
        "dataset": ("/d.zarr", "read"),
        "start": ("/start.json", "read"),
        "out": ("/h.json", "write"),
        "plot": ("/scales.png", "write"),
    }
    of_all = {path.field: path.url for path in job_paths("tune", {**TUNE, "objective": "bound", "basis_size": 50})}
    assert of_all["checkpoint"] == "/h.json.checkpoint"
    assert options_schema("tune")["properties"]["bounds"]["type"] == "array"


def test_a_factor_that_is_kept_is_written_to_the_model() -> None:
    found = [(path.field, path.access) for path in job_paths("predict", {**PREDICT, "variance": {"keep_factor": True}})]
    assert ("model", "write") in found
    assert ("model", "write") not in [(path.field, path.access) for path in job_paths("predict", PREDICT)]


def test_every_field_of_the_jobs_is_in_the_schema_and_nothing_else_is_allowed() -> None:
    for command in COMMANDS:
        schema = options_schema(command)
        kind = type(job_from_options(command, SMALLEST[command]))
        assert set(schema["properties"]) == {field.name for field in dataclasses.fields(kind)} - {"cluster"}
        # The folder of a fit has a default, which means nothing to a service.
        assert set(schema["required"]) == set(SMALLEST[command]) - (
            {"out"} if command in ("fit", "krige blocks") else set()
        )
        assert schema["additionalProperties"] is False


def test_a_fit_has_options_of_columns_that_come_back() -> None:
    ingestion = {
        "sources": ["/a.csv", "s3://b/c.csv"],
        "labels": "kind",
        "ids": ["no"],
        "table": {
            "ordinal": {"size": ["s", "m"]},
            "dates": ["sold:%Y"],
            "cyclic": {"sold": ["year"]},
            "impute": "median",
            "numbers": ["weight"],
            "decimal": ",",
            "thousands": ".",
        },
        "test_fraction": 0.2,
        "options": {"header": True},
    }
    options = {"ingestion": ingestion, "out": "/f", "seconds": 60.0, "auto_transform": False}
    job = job_from_options("fit", options)
    assert job.ingestion.table == TableOptions(
        ordinal={"size": ("s", "m")},
        dates=("sold:%Y",),
        cyclic={"sold": ("year",)},
        impute="median",
        numbers=("weight",),
        decimal=",",
        thousands=".",
    )
    assert job_from_options("fit", json.loads(json.dumps(options_from_job(job)))) == job
    paths = {(path.field, path.url, path.access) for path in job_paths("fit", options)}
    assert paths == {("sources", "/a.csv", "read"), ("sources", "s3://b/c.csv", "read"), ("out", "/f", "write")}


@pytest.mark.parametrize(
    ("ingestion", "words"),
    [
        ({"sources": ["t.csv"]}, "sources: expected an absolute path or a URL"),
        ({"sources": ["/t-*.csv"]}, "'/t-.*' is a pattern; name the files, or their folder"),
        ({"sources": []}, "sources: expected at least one"),
        ({"sources": ["/t.csv"], "targets": []}, "name the column to predict"),
        ({"sources": ["/t.csv"], "labels": "kind"}, "got both `targets`"),
        ({"sources": ["/t.csv"], "out": "/elsewhere.zarr"}, r"ingestion\.out: a fit puts its data sets into its own"),
        ({"sources": ["/t.csv"], "test_out": "/test.zarr"}, r"ingestion\.test_out: .*leave it out"),
        ({"sources": ["/t.csv"], "overwrite": True}, r"ingestion\.overwrite: .*leave it out"),
        ({"sources": ["/t.csv"], "like": "other.zarr"}, "sources: expected an absolute path"),
        ({"sources": ["simplecache::/t.csv"]}, "valid only within one process"),
        ({"sources": ["/t.csv"], "options": {"eval": "x"}}, "no format has the option 'eval'; there are header"),
        ({"sources": ["/t.csv"], "table": {"impute": "mean"}}, "`impute` is 'mean'"),
        ({"targets": ["price"]}, "sources: this option is required"),
    ],
)
def test_a_fit_that_makes_no_sense_is_refused(ingestion: dict[str, Any], words: str) -> None:
    with pytest.raises((UsageError, InputError), match=words):
        job_from_options("fit", {"ingestion": {"targets": ["price"], **ingestion}, "out": "/f"})


def test_a_job_runs_as_its_command() -> None:
    with pytest.raises(StoreError, match="nowhere"):
        run_job(EvaluateJob("/nowhere.zarr", "/nowhere-either.zarr"), SilentReporter())


@pytest.mark.parametrize(
    "options",
    [
        {"bounds": [1] * 450_000},
        {"bounds": {str(number): 1 for number in range(50_000)}},
        {"bounds": [[[1] * 300] * 300] * 3},
        {str(number): 1 for number in range(50_000)},
        {"bounds": [1] * 9000},
        {str(number): 1 for number in range(9000)},
    ],
    ids=["list", "object", "nested", "unknown fields", "as long as may be", "as many fields as may be"],
)
def test_long_options_are_refused_before_they_cost_anything(options: dict[str, Any]) -> None:
    job_from_options("tune", {"dataset": "/d", "out": "/o"})
    tracemalloc.start()
    with pytest.raises((InputError, UsageError)) as refused:
        job_from_options("tune", {"dataset": "/d", "out": "/o", **options})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(str(refused.value)) < 10_000
    assert peak < 50e6


def test_as_many_values_as_may_be_are_read() -> None:
    job = job_from_options("tune", {"dataset": "/d", "out": "/o", "bounds": ["gamma=1e-3:1"]})
    assert job.bounds == ("gamma=1e-3:1",)
