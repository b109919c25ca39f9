"""A format that somebody adds in one file, and what follows from the declarations of those that are there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import ingest, open_dataset
from dkgp.data.sources.formats import FORMATS, Format, formats
from dkgp.errors import InputError, UsageError
from dkgp.registry import Extra, Registry
from tests.plugin import dkgp, install

FORMAT = '''
    """Lines of numbers between bars, upside down where that is said."""
    import numpy as np
    from dkgp.data.remote.storage import open_object, shown
    from dkgp.data.sources.base import Block, Column, Source, row_places
    from dkgp.data.sources.formats import FORMATS, Format, formats
    from dkgp.registry import Extra, Option

    class BarSource(Source):
        def __init__(self, url, upside_down=False):
            self.url, self.groups, self.warnings, self.unit = shown(url), {}, [], "rows"
            with open_object(url) as file:
                first, *lines = file.read().decode().splitlines()
            self.values = np.array([[float(field) for field in line.split("|")] for line in lines])
            if upside_down:
                self.values = self.values[::-1]
            self.columns = self.positional = tuple(Column(n, "", i) for i, n in enumerate(first.split("|")))
            self.total = len(self.values)

        def blocks(self, columns):
            yield Block(self.values[:, [c.index for c in columns]], row_places(self.url, 0), self.total)

    FORMATS.add(
        Format(
            "bars",
            BarSource,
            suffixes=(".bars",),
            options=(Option("upside_down", "Last sample first.", type=bool, default=False),),
            extra=Extra("bars", package="numpy", module="numpy"),
        )
    )
'''


@pytest.mark.long
def test_a_format_is_one_file(tmp_path: Path, rng: np.random.Generator) -> None:
    environment = install(tmp_path, "dkgp.sources", "bar_format", FORMAT)
    values = rng.normal(size=(20, 3))
    lines = ["a|b|y", *("|".join(f"{value!r}" for value in row) for row in values.tolist())]
    (tmp_path / "table.bars").write_text("\n".join(lines))
    helped, info, plain, turned, refused = dkgp(
        environment,
        tmp_path,
        "ingest --help",
        "info --json",
        "ingest table.bars plain.zarr --target y",
        "ingest table.bars turned.zarr --target y --upside-down",
        "ingest bar_format.py no.zarr --upside-down",
    )
    assert "--upside-down" in helped.stdout
    assert "bars" in helped.stdout.split("are recognised")[0]
    assert json.loads(info.stdout)["extras"]["bars"] is True
    for done, store, expected in ((plain, "plain.zarr", values), (turned, "turned.zarr", values[::-1])):
        assert done.exit_code == 0, done.stderr
        dataset = open_dataset(tmp_path / store)
        assert dataset.feature_names == ("a", "b")
        np.testing.assert_array_equal(dataset.raw_inputs(0, 20), expected[:, :2])
    assert refused.exit_code == 2
    assert "--upside-down goes with bars; the sources are CSV" in refused.stderr


def test_the_declarations_of_dkgps_own() -> None:
    found = {each.name: each for each in formats()}
    assert {"Parquet", "NPY", "NPZ", "NetCDF", "NetCDF 3", "Zarr"} < found.keys()
    assert {each.extra.name for each in found.values() if each.extra} == {"parquet", "netcdf"}
    assert [each.name for each in found.values() if each.takes_text] == ["CSV and other delimited text"]


def test_what_no_format_recognises_is_told_with_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(range(64)))
    with pytest.raises(InputError, match=r"in no format that is known here.*Known: CSV.*Parquet \(\.parquet\)"):
        ingest(tmp_path / "data.bin", tmp_path / "d.zarr", target=None)


def test_options_that_no_source_takes_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    np.save(tmp_path / "data.npy", rng.normal(size=(5, 2)))
    with pytest.raises(UsageError, match="`header` goes with CSV.*; the sources are NPY. Leave it out"):
        ingest(tmp_path / "data.npy", tmp_path / "d.zarr", target=None, header=True)
    with pytest.raises(UsageError, match="no option 'heder' of a source format; known: header"):
        ingest(tmp_path / "data.npy", tmp_path / "d.zarr", target=None, heder=True)
    assert not (tmp_path / "d.zarr").exists()


def test_a_name_is_given_once() -> None:
    with pytest.raises(UsageError, match="two source formats 'NPY'"):
        FORMATS.add(Format("NPY", lambda url: None, magics=(b"x",)))  # type: ignore[arg-type,return-value]


def test_a_package_that_cannot_be_imported_is_told_of_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "dkgp.sources", "broken_format", "raise OSError('no such library')\n")
    monkeypatch.syspath_prepend(tmp_path)
    fresh: Registry[Format] = Registry("source format", "dkgp.data.sources", "dkgp.sources")
    with pytest.warns(RuntimeWarning, match="'broken_format' of an installed package .* left out: no such library"):
        fresh.all()


def test_an_extra_is_known_without_being_imported() -> None:
    assert Extra("x", package="numpy", module="numpy").is_there()
    assert not Extra("x", package="nonesuch", module="nonesuch").is_there()
