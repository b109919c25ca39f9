"""Bases from files and stores: what is read, in which units, and what is refused by its row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.sparse import SparseJob, SparseRun, digest, read_given_basis
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.sparse.train import SparseSettings

N = 300
HYPER = json.dumps({"kernel": SquaredExponential((0.5, 0.5)).to_json(), "noise_variance": 0.1})


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    rng = np.random.default_rng(0)
    X = 5.0 + 3.0 * rng.standard_normal((N, 3))
    X[:, 1] = 2.0  # constant: dropped
    names = ("width", "same", "height")
    with pytest.warns(UserWarning, match="'same' is constant"):
        return dataset_from_arrays(tmp_path / "train.zarr", X, np.sin(X[:, 0]), feature_names=names)


def test_inputs_are_in_the_features_own_units_by_position_or_name(dataset: Dataset, tmp_path: Path) -> None:
    raw = dataset.raw_inputs(0, 7)
    expected = dataset.inputs(0, 7)
    np.save(tmp_path / "b.npy", raw)
    np.testing.assert_array_equal(read_given_basis(str(tmp_path / "b.npy"), dataset), expected)
    # Other order, another column, and without the one that says nothing.
    table = np.column_stack([raw[:, 2], np.arange(7.0), raw[:, 0]])
    np.savetxt(tmp_path / "b.csv", table, delimiter=",", header="height,else,width", comments="", fmt="%.17g")
    np.testing.assert_array_equal(read_given_basis(str(tmp_path / "b.csv"), dataset), expected)


def test_sample_numbers_from_one_column_or_one_called_index(dataset: Dataset, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array([7, 3, 299]))
    found = read_given_basis(str(tmp_path / "b.npy"), dataset)
    assert found.tolist() == [7, 3, 299]
    assert found.dtype.kind == "i"
    (tmp_path / "b.csv").write_text("score,index\n0.5,8\n0.25,2\n")
    assert read_given_basis(str(tmp_path / "b.csv"), dataset).tolist() == [8, 2]


def test_stores_of_data_and_of_sparse_models(dataset: Dataset, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    other = dataset_from_arrays(
        tmp_path / "points.zarr", rng.standard_normal((9, 2)), np.arange(9.0), feature_names=("height", "width")
    )
    raw = other.inputs(0, 9, standardised=False)[:, ::-1]
    here = dataset.standardisation
    np.testing.assert_allclose(
        read_given_basis(other.url, dataset), (raw - here.input_mean) / here.input_std, rtol=1e-14
    )
    (tmp_path / "h.json").write_text(HYPER)
    for basis in ("uniform", "k-means"):
        out = str(tmp_path / f"{basis}.zarr")
        job = SparseJob(dataset.url, str(tmp_path / "h.json"), out, SparseSettings("dtc", 12, basis))
        SparseRun(replace(job, cluster=ClusterOptions(kind="none")), SilentReporter()).run()
        found = read_given_basis(out, dataset)
        assert found.dtype.kind == ("i" if basis == "uniform" else "f")
        assert len(found) == 12
        # The same points for a training set on another scale.
        shifted = dataset_from_arrays(
            tmp_path / f"{basis}-other.zarr",
            2.0 * dataset.inputs(0, N, standardised=False) + 1.0,
            np.arange(float(N)),
            feature_names=dataset.feature_names,
        )
        points = dataset.input_rows(found) if basis == "uniform" else found
        raw = points * here.input_std + here.input_mean
        there = shifted.standardisation
        np.testing.assert_allclose(
            read_given_basis(out, shifted), (raw - there.input_mean) / there.input_std, rtol=1e-12, atol=1e-12
        )


def test_the_basis_that_hyperparameters_were_tuned_with(dataset: Dataset, tmp_path: Path) -> None:
    hyper = tmp_path / "h.json"
    hyper.write_text(json.dumps({**json.loads(HYPER), "sparse": {"value": -3.0, "samples": [4, 200, 17]}}))
    assert read_given_basis(str(hyper), dataset).tolist() == [4, 200, 17]
    hyper.write_text(json.dumps({**json.loads(HYPER), "sparse": {"samples": [4, 300]}}))
    with pytest.raises(InputError, match="row 2 of the basis .* is 300; expected sample numbers from 0 to 299"):
        read_given_basis(str(hyper), dataset)
    hyper.write_text(HYPER)
    with pytest.raises(InputError, match="name no basis: `dkgp tune --objective bound` writes one"):
        read_given_basis(str(hyper), dataset)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.array([[1.0, 2.0, 3.0], [1.0, 2.0, np.nan]]), "column 'x2' has nan in row 2"),
        (np.array([[np.inf, 2.0, 3.0]]), "column 'x0' has inf in row 1"),
        (np.array([0.0, 300.0]), "row 2 of the basis .* is 300; expected sample numbers from 0 to 299"),
        (np.array([0.0, -1.0]), "row 2 of the basis .* is -1"),
        (np.array([1.5]), "row 1 of the basis .* is 1.5"),
        (np.ones((4, 2)), "has 2 columns; expected the 3 features width, same, height"),
        (np.empty((0, 3)), "has no rows|empty|no samples"),
    ],
)
def test_what_cannot_be_a_basis_is_refused_by_row(
    dataset: Dataset, tmp_path: Path, values: np.ndarray, words: str
) -> None:
    np.save(tmp_path / "b.npy", values)
    with pytest.raises(InputError, match=words):
        read_given_basis(str(tmp_path / "b.npy"), dataset)


def test_another_models_features_are_named(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "h.json").write_text(HYPER)
    out, cluster = str(tmp_path / "s.zarr"), ClusterOptions(kind="none")
    job = SparseJob(dataset.url, str(tmp_path / "h.json"), out, SparseSettings(basis_size=5), cluster=cluster)
    SparseRun(job, SilentReporter()).run()
    other = dataset_from_arrays(tmp_path / "other.zarr", dataset.inputs(0, 50), np.arange(50.0))
    with pytest.raises(InputError, match="has the features width, height; .* has x0, x1"):
        read_given_basis(out, other)


def test_a_digest_tells_bases_apart() -> None:
    assert digest(None) is None
    assert digest(np.arange(3)) == digest(np.arange(3)) != digest(np.array([0, 2, 1]))
