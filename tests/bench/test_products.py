"""`dkgp bench products`: the ratios that count, by name and with their noise."""

from __future__ import annotations

import pytest

from dkgp.bench.products import BenchProductsJob, run_bench_products, share_of
from dkgp.commands.reporting.progress import SilentReporter


@pytest.mark.slow
def test_ratios_stand_beside_their_noise() -> None:
    found = run_bench_products(
        BenchProductsJob(samples=600, features=2, vectors=(1,), repeats=2, halo=40), SilentReporter()
    )
    named = {"read_to_evaluated", "in_process_dask_to_none", "speedup_of_2_workers", "factor_speedup_of_2_workers"}
    assert named <= set(found["figures"])
    for name in named:
        least, most = found["null"][name]
        assert 0.0 < least <= most
        assert found["figures"][name] > 0.0
    assert [(row["cluster"], row["workers"]) for row in found["rows"]] == [
        ("none", 2),
        ("none", 2),
        ("local", 2),
        ("processes", 1),
        ("processes", 2),
        ("bare", 1),
        ("bare", 2),
    ]
    assert found["figures"]["speedup_of_2_bare_processes"] > 0.0
    assert set(found["settings"]["factor_seconds"]) == {"1", "2"}


@pytest.mark.parametrize("of", [1, 2, 5])
def test_bare_processes_share_all_tasks_out(of: int) -> None:
    shares = [share_of(91, share, of) for share in range(of)]
    assert sorted(number for share in shares for number in share) == list(range(91))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
