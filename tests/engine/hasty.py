"""`dkgp` that waits for a round of tasks no longer than DKGP_TEST_DEADLINE seconds, instead of a quarter of an hour."""

from __future__ import annotations

import os
from functools import partial

import dkgp.cluster.configuration
from dkgp.cli import main

if __name__ == "__main__":
    dkgp.cluster.configuration.ClusterOptions = partial(  # type: ignore[assignment,misc]
        dkgp.cluster.configuration.ClusterOptions, round_deadline_seconds=float(os.environ["DKGP_TEST_DEADLINE"])
    )
    main()
