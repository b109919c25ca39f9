"""A section of `dkgp bench` that somebody adds in one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugin import dkgp, install

SECTION = '''
    """How long it takes to sort numbers, against sorting them twice."""
    from dkgp.bench.section import OUT, REPEATS, SECTIONS, Section
    from dkgp.registry import Option, whole_numbers

    def run(values, reporter):
        import time
        import numpy as np
        from dkgp.commands.reporting.measurements import (
            Column, check_record_file, median_ratio, report, write_record,
        )

        def seconds(run):
            began = time.perf_counter()
            run()
            return time.perf_counter() - began

        check_record_file(values["out"])
        rows = []
        for size in values["sizes"]:
            data = np.random.default_rng(0).normal(size=size)
            pairs = [
                (seconds(lambda: np.sort(np.sort(data)[::-1])), seconds(lambda: np.sort(data)))
                for _ in range(values["repeats"])
            ]
            rows.append({"n": size, "ratio": median_ratio(*zip(*pairs)), "workers": values["cluster"].workers})
        columns = (Column("n", "numbers", ",d"), Column("ratio", "twice / once", ".2f"))
        document = report("sorting", "Sorting", columns, rows, {"worst": max(row["ratio"] for row in rows)})
        write_record(document, values["out"])
        return document

    SECTIONS.add(
        Section(
            "sorting",
            """Sorting numbers twice, against once.

            Nobody needs this.
            """,
            run,
            (
                Option("sizes", "How many.", type=whole_numbers, default="1000,2000", metavar="N,N,..."),
                REPEATS,
                OUT,
            ),
            examples=("dkgp bench sorting",),
            on_cluster=True,
        )
    )
'''


@pytest.mark.slow
def test_a_bench_section_is_one_file(tmp_path: Path) -> None:
    environment = install(tmp_path, "dkgp.benches", "sorting_bench", SECTION)
    group, helped, table, written, wrong, again = dkgp(
        environment,
        tmp_path,
        "bench --help",
        "bench sorting --help",
        "bench sorting --sizes 3000",
        "bench sorting --workers 3 --repeats 1 --out sorting.json --json",
        "bench sorting --sizes few",
        "bench sorting --out sorting_bench.py",
    )
    assert "Sorting numbers twice, against once." in group.stdout
    assert "Nobody needs this." in helped.stdout
    assert "[default: 1000,2000]" in helped.stdout
    assert "--cluster-option" in helped.stdout
    assert "twice / once" in table.stdout
    assert "3,000" in table.stdout
    assert written.exit_code == 0, written.stderr
    document = json.loads(written.stdout)
    assert [(row["n"], row["workers"]) for row in document["rows"]] == [(1000, 3), (2000, 3)]
    assert json.loads((tmp_path / "sorting.json").read_text()) == document
    assert wrong.exit_code == 2
    assert "'few' is no list of whole numbers" in wrong.stderr
    assert again.exit_code == 3
    assert "sorting_bench.py" in again.stderr
