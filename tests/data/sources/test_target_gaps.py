"""Several targets that are not all known of the same samples: what is said of them, and that it works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.data import ingest
from dkgp.data.sources.tables.learning import TableOptions
from dkgp.errors import InputError


def test_they_are_ingested_one_by_one(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,u,v\n1,2,3,\n2,1,,4\n3,5,1,2\n4,4,2,1\n0,1,5,\n")
    with pytest.raises(InputError, match="one by one, .* name one target, `drop` the others, and `drop_missing`"):
        ingest(str(table), str(tmp_path / "both.zarr"), target=["u", "v"])
    for target, other, known in (("u", "v", [3.0, 1.0, 2.0, 5.0]), ("v", "u", [4.0, 2.0, 1.0])):
        options = TableOptions(drop=(other,), drop_gaps=True)
        report = ingest(str(table), str(tmp_path / target), target=target, table=options)
        np.testing.assert_array_equal(report.train.all_targets(standardised=False)[:, 0], known)
    table.write_text("a,u,v\n1,2,3\n,1,2\n3,5,1\n")
    with pytest.raises(InputError, match="'a' holds a missing value") as error:
        ingest(str(table), str(tmp_path / "features.zarr"), target=["u", "v"])
    assert "one by one" not in str(error.value)
