"""`dkgp tune` as a job of the service: all its options in JSON and back, the places it touches, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.commands.tune import TuneJob
from dkgp.errors import DkgpError, InputError, UsageError
from dkgp.service.specification import job_from_options, job_paths, options_from_job, options_schema

TUNE: dict[str, Any] = {"dataset": "/d.zarr", "out": "/h.json"}

names = st.text(st.characters(categories=["L", "N"], include_characters="*?._[]"), min_size=1, max_size=12)
positive = st.floats(1e-6, 1e3)


@given(
    st.fixed_dictionaries(
        {"dataset": st.just("/d.zarr"), "out": st.just("/h.json")},
        optional={
            "kernel": st.sampled_from(["rbf", "matern32 + linear"]),
            "subset": st.integers(2, 10**6),
            "subsets": st.integers(2, 100),
            "objective": st.just("loo"),
            "bounds": st.lists(names.map("{}=0.1:10".format), min_size=1, max_size=3, unique=True),
            "fixed": st.tuples(names, positive).map(lambda pair: [f"{pair[0]}={pair[1]}"]),
            "priors": st.just(["gamma*=lognormal(0.1, 1)", "noise_variance=lognormal(0.01, 2)"]),
            "start": st.just("/start.json"),
            "holdout": st.floats(0.01, 0.99),
            "plot": st.just("/scales.png"),
            "learn_variance": st.just(True),
        },
    )
)
def test_options_come_back_as_they_were(options: dict[str, Any]) -> None:
    job = job_from_options("tune", options)
    assert isinstance(job, TuneJob)
    assert options_from_job(job) == options


@given(
    st.fixed_dictionaries(
        {"dataset": st.just("/d.zarr"), "out": st.just("/h.json")},
        optional={
            "likelihood": st.sampled_from(["logit", "probit", "softmax"]),
            "subsets": st.integers(2, 100),
            "folds": st.integers(2, 20),
        },
    )
)
def test_options_of_labels_come_back_as_they_were(options: dict[str, Any]) -> None:
    job = job_from_options("tune", options)
    assert options_from_job(job) == options


def test_the_places_that_it_touches() -> None:
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


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bounds": "gamma*=1:2"}, UsageError, "bounds: expected a valid (array|tuple)"),
        ({"bounds": ["gamma*=2:1"]}, UsageError, "LOW must be below HIGH"),
        ({"fixed": ["noise_variance"]}, UsageError, "`fixed` expects NAME=VALUE"),
        ({"priors": ["gamma*=uniform(0, 1)"]}, UsageError, "lognormal"),
        ({"objective": "rmse"}, UsageError, "objective: expected 'likelihood', 'loo', 'bound', 'fitc' or 'vif'"),
        ({"objective": "bound", "subset": 100}, UsageError, "leave out `subset`"),
        ({"basis_size": 100}, UsageError, "`basis_size` is of the objectives"),
        (
            {"likelihood": "gauss"},
            UsageError,
            "likelihood: expected 'logit', 'probit', 'softmax', 'gaussian', 'student-t' or 'auto'",
        ),
        ({"likelihood": "logit", "objective": "loo"}, UsageError, "`objective` loo is of regressions"),
        ({"subsets": 0}, InputError, "subsets must be at least 1"),
        ({"subsets": 2.5}, UsageError, "subsets: expected a valid integer"),
        ({"holdout": 1.0}, InputError, "holdout must be a fraction"),
        ({"folds": 1}, InputError, "folds must be from 2"),
        ({"folds": 3000}, InputError, "folds must be from 2 to the subset's size, 2000"),
        ({"plot": "/scales.txt"}, InputError, "plot: .*png"),
        ({"start": "hyper.json"}, InputError, "start: expected an absolute path"),
        ({"cluster": {"kind": "none"}}, UsageError, "service's own cluster"),
    ],
)
def test_what_the_command_would_refuse_is_refused(
    options: dict[str, Any], error: type[DkgpError], message: str
) -> None:
    with pytest.raises(error, match=message):
        job_from_options("tune", {**TUNE, **options})


def test_the_schema_lists_every_option_but_the_cluster() -> None:
    properties = options_schema("tune")["properties"]
    assert {"kernel", "subsets", "objective", "bounds", "fixed", "priors", "start", "folds", "holdout", "plot"} < set(
        properties
    )
    assert "cluster" not in properties
    assert properties["bounds"]["type"] == "array"
