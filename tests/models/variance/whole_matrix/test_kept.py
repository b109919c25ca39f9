"""Whole factors that stay: with a stored model, used where they are the model's own and whole, and in a process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkgp
from dkgp.cluster import BlockExecutor
from dkgp.data import ModelRecord, open_model
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import NumericalError, StorageError
from dkgp.kernels import SquaredExponential
from dkgp.models.prediction.predict import predict
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.whole_matrix import FOLDER, keep_whole, kept_tiles
from tests.models.variance.variance_world import Counting, World, content

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
