"""A client that is handed in: used, left open, and never copied or pickled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from dkgp import GPRegressor
from dkgp.cluster.client_executor import is_in_process, open_client_executor
from dkgp.errors import UsageError
from tests.estimators.conftest import KERNEL, NOISE, Problem


def test_workers_in_other_processes_get_what_they_need_from_stores(
    problem: Problem, fitted: GPRegressor, outer_client: Client, tmp_path: Path
) -> None:
    assert not is_in_process(outer_client)
    model = GPRegressor(KERNEL, noise_variance=NOISE, client=outer_client, store=str(tmp_path)).fit(
        problem.X, problem.y
    )
    known_mean, known_std = fitted.predict(problem.X_new, return_std=True)
    mean, std = model.predict(problem.X_new, return_std=True)
    np.testing.assert_allclose(mean, known_mean, atol=1e-6)
    np.testing.assert_allclose(std, known_std, rtol=0.02)
    assert len(list(tmp_path.iterdir())) == 2  # the training set, and the model that refers to it
    lazy = model.predict(da.from_array(problem.X_new, chunks=(30, 4)))
    np.testing.assert_array_equal(outer_client.compute(lazy).result(), mean)
    model.update(problem.X_new[:5], problem.y_new[:5])
    assert model.predict(problem.X_new).shape == (60,)
    lazily = GPRegressor(KERNEL, noise_variance=NOISE, client=outer_client)
    lazily.fit(da.from_array(problem.X, chunks=(100, 4)), da.from_array(problem.y, chunks=100))
    np.testing.assert_allclose(lazily.predict(problem.X_new), known_mean, atol=1e-6)
    assert outer_client.status == "running"


def test_something_else_is_refused(problem: Problem) -> None:
    with pytest.raises(UsageError, match="Client"), open_client_executor("tcp://127.0.0.1:1"):  # type: ignore[arg-type]
        pass


@pytest.mark.long
def test_fits_in_threads_give_futures_and_the_same_bits(problem: Problem, outer_client: Client, tmp_path: Path) -> None:
    models = [GPRegressor(KERNEL, noise_variance=NOISE, client=outer_client, store=str(tmp_path / n)) for n in "ab"]
    for name in "ab":
        (tmp_path / name).mkdir()
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(model.fit, problem.X, y) for model, y in zip(models, (problem.y, -problem.y), strict=True)
        ]
        one, other = (future.result() for future in futures)
    np.testing.assert_array_equal(one.predict(problem.X_new), -other.predict(problem.X_new))
    alone = GPRegressor(KERNEL, noise_variance=NOISE, client=outer_client, store=str(tmp_path)).fit(
        problem.X, problem.y
    )
    np.testing.assert_array_equal(alone.predict(problem.X_new), one.predict(problem.X_new))
    assert outer_client.direct_to_workers is None
