"""Record logs, plots and other small files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting import plots
from dkgp.commands.reporting.outputs import RecordLog, check_output_file, check_side_files
from dkgp.errors import ExitCode, InputError, MissingExtraError, OutputExistsError, StorageError, UsageError
from dkgp.models.metrics import CoverageCurve
from dkgp.operators.base import FloatArray

HISTORY = [
    {
        "iteration": k,
        "column_passes": 0.5 * k,
        "seconds": 1.0 * k,
        "gradient_inf_norm": 10.0**-k,
        "objective": -2.0 + 2.0**-k,
    }
    for k in range(1, 6)
]


def iterations(path: Path) -> list[int]:
    return [json.loads(line)["iteration"] for line in path.read_text().splitlines()]


def test_a_log_without_records_is_no_file(tmp_path: Path) -> None:
    with RecordLog(tmp_path / "log.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_fresh_log_replaces_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "log.jsonl"
    with RecordLog(path) as log:
        for record in HISTORY:
            log.write(record)
    with path.open("a") as file:
        file.write('{"iteration": 6, "colu')  # cut short by a kill
    with RecordLog(path, resume=True) as log:
        log.write({"iteration": 4, "again": True})
    assert iterations(path) == [1, 2, 3, 4]
    assert json.loads(path.read_text().splitlines()[-1])["again"] is True
    with RecordLog(path) as log:
        log.write(HISTORY[0])
    assert iterations(path) == [1]


def test_a_log_that_cannot_be_written_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="/proc/nowhere"), RecordLog("/proc/nowhere/log.jsonl") as log:
        log.write(HISTORY[0])


def curve(n_targets: int, n: int = 400) -> CoverageCurve:
    levels = np.linspace(0.0, 1.0, 101)
    observed = np.repeat(levels[:, None] ** 1.3, n_targets, axis=1)
    return CoverageCurve(levels, observed, n, tuple(f"target {index}" for index in range(n_targets)))


def test_the_calibration_panel_shows_what_chance_allows(tmp_path: Path) -> None:
    with plots.drawn(tmp_path / "panel.png", 5.0, 5.0, "calibration") as figure:
        plots._draw_calibration(plots._panels(figure, 1)[0], curve(1))
    top, bottom = figure.subfigs[0].axes
    (band,) = bottom.collections
    edges = band.get_paths()[0].vertices
    half = edges[np.isclose(edges[:, 0], 0.5), 1]
    # 1.96 sqrt(0.5 0.5 / 400), in percent, to within one sample.
    assert [half.min(), half.max()] == pytest.approx([-4.9, 4.9], abs=0.25)
    assert edges[np.isclose(edges[:, 0], 1.0), 1] == pytest.approx(0.0)
    drawn = {line.get_label(): line.get_xydata() for line in top.lines}
    np.testing.assert_allclose(drawn["predicted variances"][:, 1], drawn["calibrated"][:, 1] ** 1.3)
    below = {line.get_label(): line.get_xydata() for line in bottom.lines}["predicted variances"]
    np.testing.assert_allclose(below[:, 1], 100.0 * (below[:, 0] ** 1.3 - below[:, 0]), atol=1e-12)
    low, high = bottom.get_ylim()
    assert low < below[:, 1].min() < 0.0 < -low == high


def errors_drawn(tmp_path: Path, last_exponent: float) -> tuple[dict[str, FloatArray], str]:
    """Lines by their labels, and the words, of a run that falls a decade a minute from 1, a round every 6 seconds."""
    history = [
        {"seconds": 6.0 * k, "gradient_inf_norm": 10.0 ** (-k / 10)} for k in range(1, round(10 * last_exponent) + 1)
    ]
    with plots.drawn(tmp_path / "run.png", 8.0, 4.5, "run") as figure:
        axis = figure.subplots()
        plots._draw_error(axis, history, 1e-4)
    assert axis.get_yscale() == "log"
    return {line.get_label(): line.get_xydata() for line in axis.lines}, axis.texts[0].get_text()


def test_a_run_that_stopped_early_shows_when_it_would_end(tmp_path: Path) -> None:
    lines, words = errors_drawn(tmp_path, 3.0)
    assert words == "stopped after 3 min 00 s, at 10.0 times the tolerance;\nabout 1 min 00 s more at the recent rate"
    np.testing.assert_allclose(lines["smallest so far"][-1], [3.0, 1e-3])  # minutes
    np.testing.assert_allclose(lines["forecast, at the recent rate"], [[3.0, 1e-3], [4.0, 1e-4]])
    assert set(lines["tolerance 0.0001"][:, 1]) == {1e-4}
    # A forecast four times as far as the run is drawn as far again as the run, and told in full.
    lines, words = errors_drawn(tmp_path, 0.8)
    assert words.endswith("about 3 min 12 s more at the recent rate")
    np.testing.assert_allclose(lines["forecast, at the recent rate"][-1], [96.0, 10**-1.6])


def test_a_run_that_ended_shows_when(tmp_path: Path) -> None:
    lines, words = errors_drawn(tmp_path, 4.0)
    assert words == "within the tolerance after 4 min 00 s"
    assert "forecast, at the recent rate" not in lines


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_plots_are_drawn(tmp_path: Path, suffix: str) -> None:
    truth, path = np.random.default_rng(0).standard_normal(50), tmp_path / f"plot.{suffix}"
    plots.plot_convergence(path, HISTORY, tolerance=1e-4)
    start = path.read_bytes()[:5]
    assert {"png": b"\x89PNG\r", "pdf": b"%PDF-", "svg": b"<?xml"}[suffix] == start
    if suffix != "png":  # what is drawn is the same, and takes as long
        return
    plots.plot_predictions(path, truth, truth + 0.1, title="fit")
    plots.plot_predictions(path, truth, truth + 0.1, coverage=curve(12), title="fit with variances")
    plots.plot_run(path, HISTORY, truth, truth, coverage=curve(1), tolerance=1e-4, title="run with variances")
    assert path.read_bytes()[:5] == start


def test_plots_need_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"dkgp\[plot\]") as caught:
        plots.check_plot_file(tmp_path / "plot.png")
    assert caught.value.exit_code == ExitCode.USAGE


def test_side_files_are_checked_beforehand(tmp_path: Path) -> None:
    taken = tmp_path / "taken.png"
    taken.write_text("")
    check_side_files(str(taken), str(tmp_path / "new.jsonl"), replace=True)
    check_side_files(None, None, replace=False)
    with pytest.raises(OutputExistsError, match="`plot`"):
        check_side_files(str(taken), None, replace=False)
    with pytest.raises(UsageError, match="same file"):
        check_side_files(str(taken), str(taken), replace=True)
    with pytest.raises(InputError, match="folder"):
        check_output_file(tmp_path, replace=True, option="`out`")
    with pytest.raises(InputError, match="local file"):
        check_output_file("s3://bucket/plot.png", replace=True, option="`plot`")
    check_output_file("memory://nowhere/hyper.json", replace=False, option="`out`", local=False)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.png"]
