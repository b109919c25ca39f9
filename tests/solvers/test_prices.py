"""Work counted by phase against loops that count it, and prices that price it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from dkgp.errors import UsageError
from dkgp.solvers.block_descent.block_size import descent_phases, projected_round
from dkgp.solvers.cholesky.in_memory import cholesky_phases
from dkgp.solvers.conjugate.preconditioner import conjugate_phases, leaves_work
from dkgp.solvers.prices import Prices, Sizes, Work, core_seconds
from dkgp.solvers.registry import build_solver

SIZES = Sizes(n=12_000, d=5, p=2, blocks=8)


def total(phases: list, name: str, kind: str) -> float:
    return sum(
        phase.times * getattr(work, kind)
        for phase in phases
        if phase.name == name
        for work in (phase.shared, phase.threaded, phase.alone)
    )


def test_prices_price_every_kind_of_work() -> None:
    kinds = [each.name for each in fields(Work)]
    prices = Prices(**{name: 10.0**place for place, name in enumerate(kinds)})
    assert prices.seconds(Work(**dict.fromkeys(kinds, 1.0))) == int("1" * len(kinds))
    assert all(value > 0.0 for value in vars(Prices.nominal(3)).values())


def test_iterations_evaluate_half_the_matrix_and_use_it_twice() -> None:
    phases = conjugate_phases(SIZES, 30, rank=100, checks=2.0)
    n = SIZES.n
    assert total(phases, "products", "entries") == pytest.approx(30 * n * n / 2)
    assert total(phases, "products", "operations") == pytest.approx(30 * n * n / 2 * 2 * 2 * SIZES.p)
    assert total(phases, "check", "double_entries") == pytest.approx(2 * n * n / 2)
    assert total(phases, "check", "entries") == 0.0
    # Each application reads F twice, in float32; one begins the search.
    assert total(phases, "application", "bytes") == pytest.approx(31 * 2 * 4 * n * 100)


def test_leaves_on_disk_are_read_as_often_as_they_are_used() -> None:
    none, half = (conjugate_phases(SIZES, 9, halo=200, leaf=100, rank=30, spilled=share) for share in (0.0, 0.5))
    assert total(none, "application", "spilled") == 0.0
    assert total(half, "application", "spilled") == pytest.approx(total(half, "application", "bytes") / 2)
    once = conjugate_phases(SIZES, 9, halo=200, leaf=100, spilled=1.0)
    assert total(once, "application", "spilled") == pytest.approx(10 * 4 * SIZES.n * 250)


def test_float64_throughout_evaluates_nothing_in_float32() -> None:
    double = Sizes(SIZES.n, SIZES.d, double=True)
    for phases in (conjugate_phases(double, 30, rank=100), descent_phases(double, 1000, 60, 5.0)):
        assert total(phases, "products", "entries") == 0.0
        assert total(phases, "products", "double_entries") > 0.0


@pytest.mark.parametrize(("halo", "leaf", "rank"), [(300, 150, 0), (300, 150, 40), (0, 100, 0)])
def test_leaves_are_counted_as_a_loop_counts_them(halo: int, leaf: int, rank: int) -> None:
    entries = double_entries = operations = double_operations = 0.0
    order = halo + leaf
    for _ in range(0, SIZES.n, leaf):
        operations += leaf * min(40 * halo, SIZES.n / 2) * 2 * (SIZES.d + 1)  # distances to samples before the leaf
        entries += sum(range(order))
        double_entries += order * rank
        algebra = sum(row * row for row in range(halo))  # Cholesky of the halo, row by row
        algebra += leaf * halo**2  # its triangle solved for the leaf's rows
        algebra += leaf**2 * halo  # what they leave of the leaf
        algebra += 2 * sum(row * row for row in range(leaf))  # the leaf's triangle, and its inverse
        algebra += leaf**2 * halo + leaf * halo**2  # times the rows, times the halo's triangle
        algebra += rank * (order**2 + 2 * leaf * order)  # F F', its lower half, and V
        operations += 1.5 * algebra
        double_operations += rank**2 * (order + leaf)  # rows of F, and V'V
    found = leaves_work(SIZES, halo, leaf, rank)
    assert found.entries == pytest.approx(entries, rel=0.02)
    assert found.double_entries == pytest.approx(double_entries)
    assert found.operations == pytest.approx(operations, rel=0.02)
    assert found.double_operations == pytest.approx(double_operations)


def test_a_factor_without_leaves_needs_no_order() -> None:
    assert [phase.name for phase in conjugate_phases(SIZES, 10)] == ["products", "check"]
    low_rank = [phase.name for phase in conjugate_phases(SIZES, 10, rank=50)]
    assert low_rank == ["landmarks", "factor", "products", "application", "check"]
    leaves = [phase.name for phase in conjugate_phases(SIZES, 10, halo=200, leaf=100)]
    assert leaves == ["order", "factor", "products", "application", "check"]


def test_rounds_of_descent_add_up_to_the_passes() -> None:
    phases = descent_phases(SIZES, 500, 60, 4.0)
    assert total(phases, "products", "entries") == pytest.approx(4.0 * SIZES.n**2)
    assert total(phases, "selection", "drawn") == pytest.approx(4.0 * SIZES.n)
    selection = next(phase for phase in phases if phase.name == "selection")
    assert selection.hidden
    # What block sizes are chosen by is the same: candidates scored against half the block on average.
    prices = Prices.nominal(SIZES.d)
    parts = [phase for phase in phases if phase.name in ("products", "selection")]
    entries_alone = sum(prices.entries * (phase.shared.entries + phase.threaded.entries) for phase in parts)
    dense = sum(prices.seconds(phase.alone) for phase in parts if phase.name == "selection")
    assert projected_round(SIZES.n, SIZES.d, 60, 500) == pytest.approx(entries_alone + dense + 5e-3)


def test_rounds_by_rows_bring_the_candidates_gradient_alone() -> None:
    small, large = (descent_phases(Sizes(n, 8), 1000, 60, 1.0, memory=5)[1] for n in (1_000_000, 10_000_000))
    assert small.by_rows is None
    by_rows = large.by_rows
    assert by_rows is not None
    assert (large.returned, by_rows.returned) == (8e7, 6 * 8 * 60_000)
    assert by_rows.shared.entries == large.shared.entries
    assert by_rows.shared.vectors == large.alone.vectors
    assert by_rows.alone.vectors < 0.01 * large.alone.vectors
    # Without remembered steps the gradient alone comes, and rows pay from fewer samples on.
    paper = descent_phases(Sizes(1_000_000, 8), 1000, 60, 1.0, memory=0)[1].by_rows
    assert paper is not None
    assert paper.returned == 8 * 60_000


def test_dearer_work_makes_a_dearer_solve() -> None:
    prices = Prices.nominal(5)
    assert core_seconds(cholesky_phases(Sizes(20_000, 5)), prices) > 7 * core_seconds(
        cholesky_phases(Sizes(10_000, 5)), prices
    )
    few, many = (core_seconds(conjugate_phases(SIZES, count, rank=100), prices) for count in (10, 20))
    assert 1.5 * few < many < 2.0 * few


def test_a_method_says_what_its_solve_takes() -> None:
    n, d = SIZES.n, SIZES.d
    halo = build_solver("pcg", {"halo": 300, "leaf": 100, "rank": 40})
    for solver, expected in (
        (build_solver("gbcd", {"block_size": 500}), descent_phases(SIZES, 500, 60, 7.0, checks=2.0)),
        (build_solver("bcdc", {"block_size": 500}), descent_phases(SIZES, 500, 0, 7.0, checks=2.0)),
        (halo, conjugate_phases(SIZES, 7.0, halo=300, leaf=100, rank=40, checks=2.0, spilled=0.5, kept=0.3)),
        (build_solver("cholesky"), cholesky_phases(SIZES, checks=2.0)),
    ):
        assert solver.resolved(n, d).phases(SIZES, 7.0, checks=2.0, spilled=0.5, kept=0.3) == expected
    for name in ("cg", "kcg", "smo"):
        with pytest.raises(UsageError, match=f"a plan knows the solvers gbcd, pcg and cholesky; got `solver` {name}"):
            build_solver(name).resolved(n, d).phases(SIZES, 7.0)
