"""Counts of a classifier on a basis before it is trained: its choice, Newton's steps, and their Hessians."""

from __future__ import annotations

from dkgp.models.classification.basis.settings import BasisSettings
from dkgp.operators.cross.centres import MOST_TRAVERSALS
from dkgp.operators.exact_sums import unit_count
from dkgp.solvers.prices import Phase, Work

# Steps that take a Hessian, about, and passes besides.
HESSIANS, PASSES = 8.0, 16.0


def choice_phase(settings: BasisSettings, n: int, d: int) -> Phase:
    """The choice of a basis among n samples of d features."""
    m = float(min(settings.size, n))
    work = Work(double_entries=n * m) if settings.basis != "uniform" else Work()
    return Phase("choice", 1.0, work, rounds=1, pieces=MOST_TRAVERSALS, returned=8.0 * m * d)


def basis_phases(settings: BasisSettings, n: int, d: int, t: int, *, coupled: bool) -> list[Phase]:
    """The work on n samples of d features in its order, of t columns of decisions, which may hang together."""
    samples, m = float(n), float(min(settings.size, n))
    grams = t * (t + 1) / 2.0 if coupled else float(t)
    return [
        choice_phase(settings, n, d),
        Phase(
            "steps",
            PASSES + HESSIANS,
            Work(double_entries=samples * m, double_operations=4.0 * samples * m * t),
            rounds=1,
            pieces=unit_count(n),
            sent_to_each=8.0 * m * (d + t),
            returned=8.0 * m * t,
        ),
        Phase(
            "Hessians",
            HESSIANS,
            Work(double_operations=samples * m * m * grams),
            threaded=Work(double_operations=grams * m**3),
            rounds=1,
            pieces=unit_count(n),
            returned=8.0 * m * m * grams,
        ),
    ]


def basis_entries(settings: BasisSettings, n: int) -> float:
    """Kernel entries that it evaluates, about: those of its passes, and of the choice."""
    return (PASSES + HESSIANS + 1.0) * n * min(settings.size, n)
