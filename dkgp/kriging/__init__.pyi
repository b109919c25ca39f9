from .covariates import CovariateRasters
from .crossvalidation import BlockKFold, scores
from .empirical import EmpiricalVariogram, empirical_variogram
from .field import Field
from .grids import Grid
from .kriging import Kriging
from .pykrige import OrdinaryKriging, SimpleKriging, UniversalKriging
from .samples import Samples
from .space import Space
from .tables import Polygons, SampleTable, read_polygons, read_samples
from .variogram import Variogram

__all__ = [
    "BlockKFold",
    "CovariateRasters",
    "EmpiricalVariogram",
    "Field",
    "Grid",
    "Kriging",
    "OrdinaryKriging",
    "Polygons",
    "SampleTable",
    "Samples",
    "SimpleKriging",
    "Space",
    "UniversalKriging",
    "Variogram",
    "empirical_variogram",
    "read_polygons",
    "read_samples",
    "scores",
]
