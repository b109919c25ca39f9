from .candidates import compare_variograms, fitted_variogram
from .cokriging import Cokriging, coregionalisation
from .covariates import CovariateRasters
from .crossvalidation import BlockKFold, scores
from .empirical import EmpiricalVariogram, VariogramMap, empirical_variogram, variogram_map
from .field import Field
from .grids import Grid
from .indicators import Exceedance, IndicatorKriging, exceedance, exceedance_map
from .kriging import Kriging
from .pictures import plot_cross_validation, plot_map, plot_variogram, plot_variogram_map
from .pykrige import OrdinaryKriging, OrdinaryKriging3D, SimpleKriging, UniversalKriging, UniversalKriging3D
from .samples import Samples
from .space import Space
from .tables import Polygons, SampleTable, read_polygons, read_samples
from .variogram import Variogram

__all__ = [
    "BlockKFold",
    "Cokriging",
    "CovariateRasters",
    "EmpiricalVariogram",
    "Exceedance",
    "Field",
    "Grid",
    "IndicatorKriging",
    "Kriging",
    "OrdinaryKriging",
    "OrdinaryKriging3D",
    "Polygons",
    "SampleTable",
    "Samples",
    "SimpleKriging",
    "Space",
    "UniversalKriging",
    "UniversalKriging3D",
    "Variogram",
    "VariogramMap",
    "compare_variograms",
    "coregionalisation",
    "empirical_variogram",
    "exceedance",
    "exceedance_map",
    "fitted_variogram",
    "plot_cross_validation",
    "plot_map",
    "plot_variogram",
    "plot_variogram_map",
    "read_polygons",
    "read_samples",
    "scores",
    "variogram_map",
]
