from .empirical import EmpiricalVariogram, empirical_variogram
from .field import Field
from .grids import Grid
from .kriging import Kriging
from .pykrige import OrdinaryKriging, SimpleKriging, UniversalKriging
from .samples import Samples
from .space import Space
from .variogram import Variogram

__all__ = [
    "EmpiricalVariogram",
    "Field",
    "Grid",
    "Kriging",
    "OrdinaryKriging",
    "Samples",
    "SimpleKriging",
    "Space",
    "UniversalKriging",
    "Variogram",
    "empirical_variogram",
]
