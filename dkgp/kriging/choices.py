"""Choices of kriging's options, apart from the modules that compute with them: help shows only the choices."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from dkgp.errors import InputError

Quantity: TypeAlias = Literal["signal", "field", "observation"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
Duplicates: TypeAlias = Literal["merge", "keep", "mean", "first", "refuse"]
DUPLICATES: tuple[Duplicates, ...] = get_args(Duplicates)
Estimator: TypeAlias = Literal["matheron", "cressie", "dowd", "genton"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
RangeKind: TypeAlias = Literal["scale", "practical", "integral", "pykrige", "gstools", "gstat"]
RANGE_KINDS: tuple[RangeKind, ...] = get_args(RangeKind)
# Variograms by name; `dkgp.kriging.variogram.FORMS` has their functions.
FORM_NAMES = (
    *("exponential", "gaussian", "matern32", "matern52", "rational", "stable", "spherical", "cubic", "wendland"),
)
FIT_WEIGHTS = ("cressie", "pairs", "pairs/h2", "equal")
SimulationMethod: TypeAlias = Literal["auto", "circulant", "fourier", "features", "cholesky"]
SIMULATION_METHODS: tuple[SimulationMethod, ...] = get_args(SimulationMethod)
# Names of the formats of maps by the ending of their address.
MAP_FORMATS = {".tif": "GeoTIFF", ".tiff": "GeoTIFF", ".nc": "NetCDF", ".zarr": "Zarr"}


def format_of(out: str) -> str:
    """Return the format of a map by the ending of its address; `InputError` for another one."""
    for ending, name in MAP_FORMATS.items():
        if out.endswith(ending):
            return name
    raise InputError(f"the name of a map must end in {', '.join(MAP_FORMATS)}; got {out!r}")
