"""Fields with covariates on worker processes: the values of a run in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from numpy.testing import assert_array_equal

from dkgp.kriging import Cokriging, Kriging, Variogram
from dkgp.kriging.cells import cells_of
from dkgp.kriging.grids import Grid
from tests.workers import local_cluster

VARIOGRAM = Variogram("exponential", psill=1.0, range=3.0, nugget=0.1)
GRID: dict[str, Any] = {"region": (0.0, 10.0, 0.0, 10.0), "shape": (7, 9)}
ROWS, COLUMNS = np.linspace(0.0, 10.0, 7)[:, None], np.linspace(0.0, 10.0, 9)


def hills(x: Any, y: Any) -> tuple[Any, Any]:
    return np.sin(x) + 0.3 * y**2, np.cos(y) + 0.0 * x


AT_CELLS = dict(zip(("hill", "wave"), hills(COLUMNS, ROWS), strict=True))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Start two worker processes for all tests of this module: each start takes seconds."""
    with local_cluster(2, processes=True) as (_, client):
        yield client


@pytest.fixture
def samples(rng: Any) -> tuple[Any, Any, Any]:
    x, y = rng.uniform(0.0, 10.0, (2, 60))
    covariates = hills(x, y)
    return (x, y), 1.0 + covariates[0] + 0.3 * rng.standard_normal(60), covariates


def fitted(samples: Any, **settings: Any) -> Kriging:
    coordinates, z, covariates = samples
    kriging = Kriging(VARIOGRAM, kind="universal", degree=1, covariates=("hill", "wave"), **settings)
    return kriging.fit(coordinates, z, covariates=covariates)


def results_of(kriging: Kriging, folder: Path) -> dict[str, Any]:
    x, y = np.array([1.0, 2.5, 9.0]), np.array([4.0, 0.5, 9.9])
    points = kriging.predict((x, y), covariates=hills(x, y), return_bounds=True, return_variance=True)
    results = {f"points {number}": values for number, values in enumerate(points)}
    results["weights"] = kriging.weights((1.0, 2.0), covariates=hills(1.0, 2.0))
    maps = {
        "map": kriging.grid(**GRID, covariates=AT_CELLS, variance=True),
        "callable": kriging.grid(**GRID, covariates=lambda x, y: np.column_stack(hills(x, y))),
        "joint": kriging.simulate(3, covariates=AT_CELLS, **GRID),
        "features": kriging.simulate(3, covariates=AT_CELLS, method="features", **GRID),
    }
    kriging.grid(**GRID, covariates=AT_CELLS, out=folder / "map.zarr")
    kriging.simulate(2, covariates=AT_CELLS, out=folder / "fields.zarr", **GRID)
    for title, one in maps.items():
        results |= {f"{title} {name}": values.values for name, values in one.data_vars.items()}
    return results


@pytest.mark.long
@pytest.mark.parametrize("in_store", [True, False])
def test_worker_processes_have_the_values_of_this_one(
    samples: Any, tmp_path: Path, client: Client, in_store: bool
) -> None:
    for name in ("store", "here", "there"):
        (tmp_path / name).mkdir()
    here = results_of(fitted(samples), tmp_path / "here")
    if in_store:
        kriging = fitted(samples, client=client, store=str(tmp_path / "store"))
    else:
        # Fitted in this process, whose memory the workers do not read.
        kriging = fitted(samples).set_params(client=client)
    there = results_of(kriging, tmp_path / "there")
    for name, values in here.items():
        assert_array_equal(there[name], values, name)


@pytest.mark.long
def test_worker_processes_average_a_field_of_this_one(samples: Any, client: Client) -> None:
    kriging = Kriging(VARIOGRAM).fit(*samples[:2])
    blocks = [(0.0, 1.0, 0.0, 1.0), (2.0, 4.0, 3.0, 5.0)]
    here = kriging.blocks(blocks)
    there = kriging.set_params(client=client).blocks(blocks)
    for name in ("mean", "mean_error_bound", "variance_lower", "variance_upper"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-12)


@pytest.mark.long
def test_worker_processes_krige_targets_that_are_missing(
    samples: Any, client: Client, rng: Any, tmp_path: Path
) -> None:
    (x, y), z, (hill, _) = samples
    data = z, np.where(rng.random(60) < 0.3, np.nan, hill + 0.1 * rng.standard_normal(60))
    sills, nuggets, points = [[1.0, 0.8], [0.8, 2.0]], [0.1, 0.2], (np.array([1.0, 9.5]), np.array([2.0, 0.5]))
    here: Any = Cokriging(Kriging(VARIOGRAM), sills, nuggets).fit((x, y), data).kriged(points, variance=True)
    kriging = Kriging(VARIOGRAM, client=client, store=str(tmp_path))
    there: Any = Cokriging(kriging, sills, nuggets).fit((x, y), data).kriged(points, variance=True)
    for name in ("mean", "mean_error_bound", "covariance"):
        assert_array_equal(getattr(there, name), getattr(here, name), name)


def test_covariates_of_cells_do_not_travel(samples: Any) -> None:
    field, grid = fitted(samples).field_, Grid.of((0.0, 10.0, 0.0, 10.0), shape=(400, 300))
    covariates = dict(zip(("hill", "wave"), hills(grid.x, grid.y[:, None]), strict=True))
    rows = cells_of(field, grid, covariates=covariates)[1]
    sent = pickle.dumps(rows)
    assert len(sent) < 20_000  # a bit a cell, where arrays have 16 bytes
    read = pickle.loads(sent).read(5, 9)
    assert_array_equal(read[:, :2], rows.read(5, 9)[:, :2])
    assert np.isnan(read[:, 2:]).all()
