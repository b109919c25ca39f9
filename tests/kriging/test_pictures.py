"""Pictures of kriging: the numbers that are drawn, and image files."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging import Kriging, pictures
from dkgp.kriging.empirical import empirical_variogram, variogram_map
from dkgp.kriging.grids import Grid
from dkgp.kriging.variogram import Variogram

pytest.importorskip("matplotlib")


@pytest.fixture
def figure(monkeypatch: Any) -> Any:
    """Return the figure that a picture is drawn in."""
    from matplotlib.figure import Figure

    kept = Figure()

    @contextmanager
    def drawn(path: Any, width: float, height: float, title: str) -> Any:
        yield kept

    monkeypatch.setattr(pictures, "drawn", drawn)
    return kept


@pytest.fixture
def samples(rng: Any) -> tuple[Any, Any]:
    x = rng.random((2, 60)) * 100
    return x, np.sin(x[0] / 20)


def test_a_variogram_has_points_models_and_pair_counts(figure: Any, samples: Any) -> None:
    x, z = samples
    empirical = empirical_variogram(tuple(x), z, bins=5, direction=90.0)
    model = Variogram("exponential", psill=1.0, range=30.0, nugget=0.1, ratio=0.5, angle=0.0)
    pictures.plot_variogram("v.png", empirical, {"by hand $": model}, "title")
    above, below = figure.axes
    assert [bar.get_height() for bar in below.patches] == empirical.count.tolist()
    assert [text.get_text() for text in below.texts] == [str(count) for count in empirical.count]
    lines = {line.get_label(): line for line in above.lines}
    # Along the minor axis the length is half as long.
    lag, gamma = lines[r"by hand \$"].get_data()
    np.testing.assert_allclose(gamma, 0.1 + 1.0 - np.exp(-2.0 * lag / 30.0), rtol=1e-12)
    assert "90° from east" in below.get_xlabel()


def test_a_variogram_map_has_its_cells_at_their_lags(figure: Any, samples: Any) -> None:
    result = variogram_map(tuple(samples[0]), samples[1], max_lag=30.0, cells=3)
    pictures.plot_variogram_map("m.png", result, "title")
    image = figure.axes[0].images[0]
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), result.gamma)
    assert list(image.get_extent()) == [-35.0, 35.0, -35.0, 35.0]


def test_a_map_has_layers_samples_and_the_unit(figure: Any, samples: Any) -> None:
    grid = Grid.of((0.0, 100.0, 0.0, 50.0), spacing=10.0)
    layers = {"mean": np.zeros(grid.shape), "standard deviation": np.ones(grid.shape)}
    axes = ("easting (m)", "northing (m)")
    pictures.plot_map("k.png", grid, layers, tuple(samples[0]), "title", unit="mg/kg", axes=axes)
    first, second, *bars = figure.axes
    assert list(first.images[0].get_extent()) == [-5.0, 105.0, -5.0, 55.0]
    assert all(len(axis.lines[0].get_xdata()) == 60 for axis in (first, second))
    assert [bar.get_ylabel() for bar in bars] == ["mg/kg", "mg/kg"]
    assert [(axis.get_xlabel(), axis.get_ylabel()) for axis in (first, second)] == [axes, axes]


def test_maps_and_tables_are_drawn_as_they_come(figure: Any, samples: Any) -> None:
    kriging = Kriging(Variogram("exponential", psill=1.0, range=20.0, nugget=0.1)).fit(samples[0], samples[1])
    map_ = kriging.grid((0.0, 100.0, 0.0, 50.0), shape=(3, 5), variance=True)
    pictures.plot_map("m.png", map_)
    first, second, *_ = figure.axes
    assert [axis.get_title() for axis in (first, second)] == ["mean", "standard deviation"]
    assert (first.get_xlabel(), first.get_ylabel()) == ("easting", "northing")
    np.testing.assert_array_equal(first.images[0].get_array(), map_["scalars"])
    np.testing.assert_allclose(second.images[0].get_array() ** 2, map_["variance"])
    figure.clear()
    pictures.plot_cross_validation("c.png", kriging.leave_one_out())
    assert "within 1.96" in figure.axes[1].get_title()
    with pytest.raises(InputError, match="a Grid has no values; pass `layers`"):
        pictures.plot_map("m.png", Grid.of((0.0, 1.0, 0.0, 1.0), shape=(2, 2)))


def test_a_cross_validation_marks_intervals_that_miss(figure: Any) -> None:
    value, error = np.array([1.0, 2.0, 3.0, np.nan]), np.array([0.1, -0.2, 2.5, 0.0])
    pictures.plot_cross_validation("c.png", value, error, np.ones(4), "title", unit="m")
    left, right = figure.axes
    covers, misses = (line.get_data() for line in left.lines[:2])
    np.testing.assert_allclose(covers, [[1.0, 2.0], [0.9, 2.2]])
    np.testing.assert_allclose(misses, [[3.0], [0.5]])
    assert right.get_title() == "root mean square 1.45; 66.7% within 1.96"
    with pytest.raises(InputError, match="no value has a finite error and variance"):
        pictures.plot_cross_validation("c.png", [np.nan], [1.0], [1.0], "title")


def test_counts_are_short() -> None:
    short = [pictures._short(count) for count in (0, 999, 1500, 43_000, 7_000_000, 1_511_112_119)]
    assert short == ["0", "999", "1.5k", "43k", "7M", "1.5G"]


def test_files_are_written(tmp_path: Any, samples: Any) -> None:
    x, z = samples
    empirical = empirical_variogram(tuple(x), z)
    pictures.plot_variogram(tmp_path / "v.svg", empirical, [], "zinc in $")
    empirical.plot(str(tmp_path / "again.svg"), title="zinc in $")
    assert (tmp_path / "again.svg").read_text().startswith("<?xml")
    assert (tmp_path / "v.svg").read_text().startswith("<?xml")
    pictures.plot_cross_validation(tmp_path / "c.png", z, 0.1 * z, np.ones(60), "left out")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
