"""Estimates and displays of a solve and of other work."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from dkgp.commands.reporting.convergence import ConvergenceEstimate
from dkgp.commands.reporting.terminal import TerminalReporter, duration
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


def test_plain_lines_come_now_and_then() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=False, width=200)
    rare = TerminalReporter(console=console, plain_line_seconds=1e6)
    with rare.solve("train", 1e-4) as show:
        for k in range(1, 50):
            show(record(k, float(k), 10.0 ** (-k / 10)))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1  # the last one, when the work ends
    assert "round 49, 4.90 passes, max|g| 1.26e-05 -> 1e-04" in lines[0]
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
        "predict: samples:  40 %, 400 of 1,000 samples",
        "predict: samples:  42 %, 420 of 1,000 samples",
        "predict: samples:  80 %, 800 of 1,000 samples, 40 samples/s, about 5 s left",
        "predict: samples: 100 %, 1,000 of 1,000 samples, 40 samples/s, about 0 s left",
        "predict: next: 0.0 MiB",
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
        "train:   0 %, product 100 %, about 0 s left",
        "train:   0 %, round 1, 0.10 passes, max|g| 1.00e-01 -> 1e-04",
        "product 55 %, about 10 s left",
        "product 100 %, about 0 s left",
        "train:  33 %, round 2, 0.20 passes, max|g| 1.00e-02 -> 1e-04, 1.97 decades/min, about 1 min 01 s left",
    ]


def test_a_terminal_gets_a_live_line() -> None:
    stream = io.StringIO()
    reporter = TerminalReporter(console=Console(file=stream, force_terminal=True, width=160))
    with reporter.solve("train", 1e-4) as show:
        show(record(1, 1.0, 0.1))
        show(record(2, 2.0, 0.01))
    assert "round 2" in stream.getvalue()
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


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
