"""Hyperparameters as a value and a file: what is accepted, what is refused and with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.errors import ExitCode, InputError, OutputExistsError
from dkgp.kernels import SquaredExponential
from dkgp.models.hyperparameters import Hyperparameters, TunedParameter, read_hyperparameters, write_hyperparameters


def by_hand(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kernel": {"type": "rbf", "variance": 1.0, "gamma": [0.5, 2.0, 0.25]},
        "noise_variance": 0.01,
    }
    document.update(changes)
    return document


def with_kernel(**changes: Any) -> dict[str, Any]:
    document = by_hand()
    document["kernel"].update(changes)
    return document


TUNED = Hyperparameters(
    kernel=SquaredExponential(gamma=(0.1, 1.0 / 3.0), variance=2.5),
    noise_variance=0.0070123456789,
    log_marginal_likelihood=-123.456,
    evaluations=17,
    seconds=1.5,
    converged=False,
    subset_size=200,
    n_samples=1000,
    subsets=4,
    objective="loo",
    leave_one_out_log_likelihood=-12.5,
    log_prior=-1.25,
    parameters=(
        TunedParameter("gamma.width", 0.1, 0.25, 1e-8, 1e4, "width"),
        TunedParameter("noise_variance", 0.0070123456789, 0.0070123456789, 1e-6, 4.0, fixed=True),
    ),
    scores={"folds": {"folds": 5, "predictions": 200, "rmse": 0.1, "nlpd": -0.5, "coverage_95": 0.94}},
    seed=3,
    feature_names=("width", "height"),
    warnings=("on its upper bound",),
)


def test_json_round_trip_is_exact() -> None:
    assert Hyperparameters.from_json(json.loads(json.dumps(TUNED.to_json()))) == TUNED


def test_file_round_trip_is_exact(tmp_path: Path) -> None:
    path = tmp_path / "hyper.json"
    write_hyperparameters(path, TUNED)
    assert read_hyperparameters(path, n_features=2, feature_names=("width", "height")) == TUNED
    assert [item.name for item in tmp_path.iterdir()] == ["hyper.json"]


def test_two_keys_written_by_hand_suffice(tmp_path: Path) -> None:
    path = tmp_path / "hyper.json"
    path.write_text(json.dumps(by_hand(comment="from the paper")))
    found = read_hyperparameters(path, feature_names=("a", "b", "c"))
    assert found.kernel == SquaredExponential(gamma=(0.5, 2.0, 0.25))
    np.testing.assert_array_equal(found.gamma, [0.5, 2.0, 0.25])
    assert (found.noise_variance, found.log_marginal_likelihood, found.converged) == (0.01, None, None)


def test_existing_file_is_kept_unless_overwriting(tmp_path: Path) -> None:
    path = tmp_path / "hyper.json"
    path.write_text("precious")
    with pytest.raises(OutputExistsError, match="already exists"):
        write_hyperparameters(path, TUNED)
    assert path.read_text() == "precious"
    write_hyperparameters(path, TUNED, overwrite=True)
    assert read_hyperparameters(path) == TUNED


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], r"must be a JSON object; got \[\]"),
        ({"kernel": by_hand()["kernel"]}, "'noise_variance' is missing; got 'kernel'"),
        ({}, "'kernel', 'noise_variance' are missing; got nothing"),
        (by_hand(noise_variance=0.0), r"noise_variance must be positive and finite; got 0\.0"),
        (by_hand(noise_variance=-0.1), r"noise_variance must be positive and finite; got -0\.1"),
        (by_hand(noise_variance=float("nan")), "noise_variance must be positive and finite; got nan"),
        (by_hand(noise_variance="0.1"), "`noise_variance` must be a number; got '0.1'"),
        (by_hand(noise_variance=True), "`noise_variance` must be a number; got True"),
        (with_kernel(gamma=[0.5, -2.0, 0.25]), r"gamma\[1\] must be positive and finite; got -2\.0"),
        (with_kernel(gamma=[0, 0.0, 0]), r"gamma\[0\] must be positive and finite; got 0\.0"),
        (with_kernel(gamma=[float("nan"), 2.0]), r"gamma\[0\] must be positive and finite; got nan"),
        (with_kernel(gamma=[float("inf")]), r"gamma\[0\] must be positive and finite; got inf"),
        (with_kernel(gamma=[0.5, "wide"]), r"gamma\[1\] must be a number; got 'wide'"),
        (with_kernel(gamma=[]), "one value for each feature; got none"),
        (with_kernel(gamma=0.5), "must be a list"),
        (with_kernel(variance=-1.0), r"variance must be positive and finite; got -1\.0"),
        (with_kernel(type="matern99"), r"unknown kernel type 'matern99'; known types: \[.*'rbf'"),
        (by_hand(kernel={"gamma": [1.0]}), 'needs a "type"'),
        (by_hand(kernel={"type": "rbf"}), 'needs "gamma"'),
        (by_hand(kernel="rbf"), 'needs a "type"'),
        (by_hand(evaluations="many"), "`evaluations` must be a whole number; got 'many'"),
        (by_hand(feature_names=["only one"]), "has 3 features, but 1 feature names"),
        (by_hand(feature_names="abc"), "`feature_names` must be a list; got 'abc'"),
        (by_hand(objective=3), "`objective` must be text; got 3"),
        (by_hand(parameters={"gamma": 1.0}), "`parameters` must be a list; got "),
        (by_hand(parameters=["gamma"]), r"`parameters\[0\]` must be a JSON object; got 'gamma'"),
        (by_hand(parameters=[{"name": "gamma"}]), r"`parameters\[0\]` lacks `value`"),
        (
            by_hand(parameters=[{"name": 1, "value": 1, "start": 1, "lower": 1, "upper": 1}]),
            r"`parameters\[0\].name` must be text; got 1",
        ),
        (by_hand(scores=[1]), r"`scores` must be a JSON object; got \[1\]"),
        (by_hand(scores={"folds": 1}), r"`scores\[...\]` must be a JSON object"),
    ],
)
def test_inadmissible_documents_are_refused(document: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Hyperparameters.from_json(document)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    path = tmp_path / "hyper.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="hyper.json"):
        read_hyperparameters(path)


def test_wrong_number_of_features_names_both(tmp_path: Path) -> None:
    path = tmp_path / "hyper.json"
    path.write_text(json.dumps(by_hand()))
    with pytest.raises(InputError, match=r"are for 3 features, but the data have 2 \(width, height\)"):
        read_hyperparameters(path, n_features=2, feature_names=("width", "height"))
    with pytest.raises(InputError, match="but the data have 4;"):
        read_hyperparameters(path, n_features=4)


def test_other_feature_order_is_refused() -> None:
    TUNED.check_features(2, ("width", "height"))
    with pytest.raises(InputError, match="at position 0 got 'width', expected 'height'"):
        TUNED.check_features(2, ("height", "width"))


def test_missing_file_and_broken_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no hyperparameter file .*absent\.json.*dkgp tune"):
        read_hyperparameters(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text('{"kernel": ')
    with pytest.raises(InputError, match=r"broken\.json' is not JSON"):
        read_hyperparameters(tmp_path / "broken.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match=r"binary\.json' is not JSON"):
        read_hyperparameters(tmp_path / "binary.json")
