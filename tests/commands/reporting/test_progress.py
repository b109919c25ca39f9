"""Estimates and displays of a solve and of other work."""

from __future__ import annotations

import io
import math
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from dkgp.commands.reporting.progress import (
    ConvergenceEstimate,
    choice_line,
    duration,
    search_line,
    solve_line,
    typed,
)
from dkgp.commands.reporting.terminal import TerminalReporter
from dkgp.data import Progress as WorkProgress
from dkgp.solvers import Progress


def record(iteration: int, seconds: float, norm: float) -> Progress:
    return Progress(
        iteration=iteration,
        column_passes=0.1 * iteration,
        kernel_evaluations=1000 * iteration,
        seconds=seconds,
        gradient_inf_norm=norm,
        gradient_norm=norm,
        relative_residual=norm,
        objective=-1.0,
        objective_gap_bound=norm,
    )


def test_a_steady_solve_is_predicted_exactly() -> None:
    estimate = ConvergenceEstimate(1e-4)
    for k in range(21):  # a decade every 10 s from 1 on: 1e-2 after 20 s
        estimate.update(record(k, float(k), 10.0 ** (-k / 10)))
    assert estimate.fraction == pytest.approx(0.5)
    assert estimate.decades_per_minute == pytest.approx(6.0)
    assert estimate.seconds_left == pytest.approx(20.0)


def test_the_share_done_never_falls_and_ends_at_one() -> None:
    estimate = ConvergenceEstimate(1e-3)
    shares = []
    for k, norm in enumerate((1.0, 0.1, 0.5, 0.01, 0.2, 1e-4)):
        estimate.update(record(k, float(k), norm))
        shares.append(estimate.fraction)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert estimate.seconds_left == 0.0


def test_stagnation_has_no_time_left_to_tell() -> None:
    estimate = ConvergenceEstimate(1e-4)
    assert estimate.seconds_left is None
    for k in range(20):
        estimate.update(record(k, float(k), 0.5))
    assert estimate.seconds_left is None
    assert estimate.decades_per_minute is None
    assert math.isclose(estimate.fraction, 0.0)


@pytest.mark.parametrize("drop", [0.0, 1e-15, 1e-12])
def test_a_measure_that_falls_by_roundings_alone_has_no_time_left_to_tell(drop: float) -> None:
    # The mean of these equal logarithms is not exact, so their slope is -1e-18 rather than zero.
    estimate = ConvergenceEstimate(1e-4)
    for k in range(23):
        estimate.update(record(k, 0.1 * k, 0.3 * (1.0 - drop * k)))
    assert estimate.seconds_left is None
    assert "left" not in solve_line({**record(23, 2.3, 0.3).to_json(), **estimate.to_json()}, verbose=False)


def test_plain_lines_come_now_and_then() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=False, width=200)
    rare = TerminalReporter(console=console, plain_line_seconds=1e6)
    with rare.solve("train", 1e-4) as show:
        for k in range(1, 50):
            show(record(k, float(k), 10.0 ** (-k / 10)))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1  # the last one, when the work ends
    assert lines[0] == "train: 100 %, largest residual 1.3e-05, tolerance 1e-04"
    often = TerminalReporter(console=console, plain_line_seconds=0.0)
    with often.work("ingest") as advance:
        for done in range(4):
            advance(WorkProgress("write", done, 4, "rows"))
    assert stream.getvalue().splitlines()[1:] == [f"ingest: write: {25 * k:3d} %, {k} of 4 rows" for k in range(4)]


def test_work_has_a_rate_and_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = [0.0], io.StringIO()
    monkeypatch.setattr("dkgp.commands.reporting.terminal.time.monotonic", lambda: clock[0])
    console = Console(file=stream, force_terminal=False, width=200)
    with TerminalReporter(console=console, plain_line_seconds=0.0).work("predict") as advance:
        # 400 were done by an earlier run; then 40 a second.
        for second, done in ((30.0, 400), (30.5, 420), (40.0, 800), (45.0, 1000)):
            clock[0] = second
            advance(WorkProgress("samples", done, 1000, "samples"))
        advance(WorkProgress("next", 0, None, "bytes"))
        clock[0] = 47.0
        advance(WorkProgress("next", 5 * 2**20, None, "bytes"))
    assert stream.getvalue().splitlines() == [
        "predict:  40 %, 400 of 1,000 samples",
        "predict:  42 %, 420 of 1,000 samples",
        "predict:  80 %, 800 of 1,000 samples, 40 samples/s, about 5 s left",
        "predict: 100 %, 1,000 of 1,000 samples, 40 samples/s",
        "predict: next: 0.0 KiB",
        "predict: next: 5.0 MiB, 2.5 MiB/s",
    ]


def test_a_long_round_shows_how_far_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = [0.0], io.StringIO()
    monkeypatch.setattr("dkgp.commands.reporting.terminal.time.monotonic", lambda: clock[0])
    console = Console(file=stream, force_terminal=False, width=200)
    with TerminalReporter(console=console, plain_line_seconds=0.0).solve("train", 1e-4) as show:
        for iteration in (1, 2):
            for done in (10, 11, 60, 110):
                clock[0] += 0.5 if done == 11 else 10.0
                show(WorkProgress("product", done, 110, "pairs of blocks"))
            show(record(iteration, clock[0], 10.0**-iteration))
    # Nothing is said of the first second, in which there is no rate.
    assert [line.split("; ")[-1] for line in stream.getvalue().splitlines()] == [
        "train:   0 %, product 55 %, about 10 s left",
        "train:   0 %, product 100 %",
        "train:   0 %, largest residual 1.0e-01, tolerance 1e-04",
        "product 55 %, about 10 s left",
        "product 100 %",
        "train:  33 %, largest residual 1.0e-02, tolerance 1e-04, about 1 min 01 s left",
    ]


def test_a_terminal_gets_a_live_line() -> None:
    stream = io.StringIO()
    reporter = TerminalReporter(console=Console(file=stream, force_terminal=True, width=160))
    with reporter.solve("train", 1e-4) as show:
        show(record(1, 1.0, 0.1))
        show(record(2, 2.0, 0.01))
    assert "largest residual 1.0e-02" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()


def test_quiet_keeps_warnings() -> None:
    stream = io.StringIO()
    reporter = TerminalReporter(quiet=True, console=Console(file=stream, width=200))
    reporter.note("a note")
    reporter.warn("take care [of brackets]")
    reporter.warn("take care [of brackets]")
    with reporter.solve("train", 1e-4) as show:
        show(record(1, 1.0, 0.1))
    assert stream.getvalue().splitlines() == ["warning: take care [of brackets]"]
    assert reporter.warnings == ["take care [of brackets]"]


def test_figures_of_solvers_come_with_verbose_alone() -> None:
    def shown(*, verbose: bool) -> list[str]:
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=False, width=200)
        reporter = TerminalReporter(console=console, plain_line_seconds=0.0, verbose=verbose)
        with reporter.solve("train", 1e-4) as show:
            for k in (0, 1, 2):
                show(record(k, 10.0 * k, 10.0**-k))
        reporter.note("in words", "in figures")
        reporter.note("for all")
        return stream.getvalue().splitlines()

    assert shown(verbose=False)[1:] == [
        "train:  25 %, largest residual 1.0e-01, tolerance 1e-04, about 30 s left",
        "train:  50 %, largest residual 1.0e-02, tolerance 1e-04, about 20 s left",
        "in words",
        "for all",
    ]
    assert shown(verbose=True)[1:] == [
        "train:  25 %, round 1, 0.10 passes, max|g| 1.00e-01 -> 1e-04, 6.00 decades/min, about 30 s left",
        "train:  50 %, round 2, 0.20 passes, max|g| 1.00e-02 -> 1e-04, 6.00 decades/min, about 20 s left",
        "in figures",
        "for all",
    ]


def test_lines_of_other_measures_searches_and_choices() -> None:
    of_gap = {"measure": "duality_gap", "duality_gap": 0.25, "tolerance": 0.03, "iteration": 3, "column_passes": 1.5}
    assert solve_line(of_gap, verbose=False) == "distance to the best fit, relative 2.5e-01, tolerance 3e-02"
    assert solve_line(of_gap, verbose=True) == "round 3, 1.50 passes, relative gap 2.50e-01 -> 3e-02"
    assert solve_line({"measure": "duality_gap", "duality_gap": None}, verbose=False) == "begun"
    search = {"evaluation": 7, "start": 1, "best_log_marginal_likelihood": -3.14159, "gradient_inf_norm": 0.02}
    assert search_line(search, verbose=False) == "7 evaluations from starting point 2, best log likelihood -3.14"
    assert search_line(search, verbose=True) == "evaluation 7, starting point 2, log likelihood -3.14, gradient 0.02"
    choice = {"size": 1200, "risk": 0.125, "gap": 0.034}
    assert choice_line(choice, 2000, verbose=False) == "1,200 of 2,000 basis samples, at most 3.4 % above the best fit"
    assert choice_line(choice, None, verbose=True) == "1,200 basis samples, risk 0.125, gap 0.034"


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_notebook_has_one_line_that_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(("anew", content["text/plain"]))

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(("first", content["text/plain"]))
        return Handle()

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr("dkgp.commands.reporting.terminal.UPDATE_SECONDS", 0.0)
    stream = io.StringIO()
    with TerminalReporter(console=Console(file=stream)).work("predict") as advance:
        for done in (1, 2, 3):
            advance(WorkProgress("samples", done, 4, "samples"))
    assert [kind for kind, _ in shown] == ["first", "anew", "anew"]
    assert shown[-1][1].startswith("predict:  75 %, 3 of 4 samples")
    assert stream.getvalue() == ""
    # A shell in a terminal is none.
    shell.kernel = None
    with TerminalReporter(console=Console(file=stream), plain_line_seconds=0.0).work("predict") as advance:
        advance(WorkProgress("samples", 1, 4, "samples"))
    assert "25 %" in stream.getvalue()
    assert len(shown) == 3


def test_programs_and_values_are_not_spelled_as_flags() -> None:
    assert typed("name it in `not_missing`; `auto` holds rows out") == "name it in --not-missing; `auto` holds rows out"
    assert typed("there is no `sbatch`; see `dkgp fit`") == "there is no `sbatch`; see `dkgp fit`"
