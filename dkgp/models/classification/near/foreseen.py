"""Counts of a classifier on a basis with neighbours before it is trained: its choice, the search, Newton's steps."""

from __future__ import annotations

from dkgp.models.classification.basis.foreseen import choice_phase
from dkgp.models.classification.near.settings import NearSettings
from dkgp.models.sparse.vif.foreseen import factors_phase, leaves_phase, search_phase
from dkgp.solvers.prices import Phase

# Steps to the mode of one latent function, about: six to twenty were seen.
STEPS = 9.0


def near_phases(settings: NearSettings, n: int, d: int, t: int, kept: float) -> list[Phase]:
    """The work on n samples of d features in its order, of t latent functions; workers keep a share `kept` of leaves.

    Within a step leaves are passed twice, for sums and for weights; what is kept is made once for all steps.
    """
    m, near, steps = min(settings.size, n), settings.near, STEPS * t
    made = 1.0 + (1.0 - kept) * (2.0 * steps - 1.0)
    return [
        choice_phase(settings, n, d),
        search_phase(near, n, d),
        leaves_phase(made, near, n, m),
        factors_phase("steps", steps * (2.0 - kept), near, n, d, m, 1),
    ]
