from .candidates import compare_variograms, fitted_variogram
from .covariates import CovariateRasters
from .crossvalidation import BlockKFold, scores
from .empirical import EmpiricalVariogram, VariogramMap, empirical_variogram, variogram_map
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
    "VariogramMap",
    "compare_variograms",
    "empirical_variogram",
    "fitted_variogram",
    "read_polygons",
    "read_samples",
    "scores",
    "variogram_map",
]
