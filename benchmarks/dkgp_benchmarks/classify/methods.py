"""The methods of `dkgp bench classify` by name, with settings of their own if need be: "scdpp,candidates=118"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dkgp.errors import InputError, UsageError
from dkgp_benchmarks.classify.dense import LeastSquaresSVM
from dkgp_benchmarks.classify.fixed_size import CANDIDATES, SETTINGS, FixedSize
from dkgp_benchmarks.classify.probabilities import rivals as probable_rivals
from dkgp_benchmarks.classify.probabilities.own import PROCESS_SETTINGS, Probable
from dkgp_benchmarks.classify.probabilities.own import SETTINGS as PROBABLE_SETTINGS
from dkgp_benchmarks.classify.probabilities.peers import SETTINGS as PEER_SETTINGS
from dkgp_benchmarks.classify.probabilities.peers import PeerProcess
from dkgp_benchmarks.classify.rivals import Boosting, SupportVectors, boosting_library
from dkgp_benchmarks.classify.sparse_rival import SparseMachine
from dkgp_benchmarks.classify.trial import Method


@dataclass(frozen=True)
class _Known:
    """A method that can be named.

    Attributes
    ----------
    make
        From settings to the method.
    settings
        Names of its settings, and how their text is read.
    table_5
        Whether it can train on tens of thousands of samples, as in Table 5.
    probable
        Whether it has probabilities, and stands in the table of these.
    label
        Its heading in a table, where that is not its name.
    require
        Raises where a package is missing that it needs.
    """

    make: Callable[[Mapping[str, Any]], Method]
    settings: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    table_5: bool = True
    probable: bool = False
    label: Callable[[], str] | None = None
    require: Callable[[], object] = lambda: None


METHODS: dict[str, _Known] = {
    "scdp": _Known(lambda given: FixedSize({"pool": 1.0, **given}), SETTINGS, table_5=False),
    "scdp-pool": _Known(FixedSize, SETTINGS),
    "scdpp": _Known(lambda given: FixedSize({"pool": 1.0, "candidates": CANDIDATES, **given}), SETTINGS, table_5=False),
    "ls-svm": _Known(lambda _: LeastSquaresSVM(), table_5=False),
    "svm": _Known(lambda _: SupportVectors()),
    "spsvm": _Known(lambda _: SparseMachine()),
    "boosting": _Known(lambda _: Boosting(), label=lambda: f"boosting ({boosting_library()})"),
    "logistic": _Known(lambda given: Probable("logistic", given), PROBABLE_SETTINGS, probable=True),
    "gp": _Known(lambda given: Probable("gp", given), PROCESS_SETTINGS, probable=True),
    "gpboost": _Known(PeerProcess, PEER_SETTINGS, probable=True),
    "svc-calibrated": _Known(
        probable_rivals.CalibratedVectors,
        probable_rivals.SVM_SETTINGS,
        probable=True,
    ),
    "hist-boosting": _Known(lambda _: probable_rivals.HistogramTrees(), probable=True),
    "lightgbm": _Known(lambda _: probable_rivals.LightTrees(), probable=True, require=probable_rivals.require_light),
    "sklearn-gp": _Known(
        probable_rivals.DenseProcess,
        probable_rivals.PROCESS_SETTINGS,
        table_5=False,
        probable=True,
    ),
}
# Methods of Tables 3 to 5 where none is named.
OF_THE_PAPER = ("scdp", "scdp-pool", "scdpp", "ls-svm", "svm", "spsvm", "boosting")
PROBABILITIES = "probabilities"
# Where a user names none. Of Table 2: parameter, value, method; of "scdpp", its outliers and what may mend them.
DEFAULT_METHODS = {
    "3": OF_THE_PAPER,
    PROBABILITIES: (
        "logistic",
        "gp",
        "logistic,basis=2000",
        "gp,basis=2000",
        "gp,basis=200,neighbours=128",
        "svc-calibrated",
        "hist-boosting",
        "lightgbm",
        "sklearn-gp",
    ),
    "5": ("scdp-pool", "scdp-pool,isotropic=no", "svm", "spsvm", "boosting"),
    "scdpp": (
        "scdp",
        "scdpp",
        "scdpp,intercept=selected",
        "scdpp,intercept=selected,redraw=yes",
        "scdpp,intercept=selected,redraw=yes,candidates=177",
        "scdpp,intercept=first,redraw=yes",
        "scdpp,candidates=177",
    ),
}
ABLATION_DEFAULT = "scdp-pool"
ABLATION = (
    ("as it comes", "", ABLATION_DEFAULT),
    ("M, pool", "0.1 n", "scdp-pool,pool=0.1"),
    ("M, pool", "n", "scdp-pool,pool=all"),
    ("pool by", "uniform", "scdp-pool,prototypes=uniform"),
    ("pool by", "entropy", "scdp-pool,prototypes=entropy"),
    ("pool by", "k-means", "scdp-pool,prototypes=k-means"),
    ("pool by", "pivoted", "scdp-pool,prototypes=pivoted"),
    ("rho", "10", "scdp-pool,candidates=10"),
    ("rho", "59", "scdp-pool,candidates=59"),
    ("eps", "none", "scdp-pool,stop=none"),
    ("eps", "0.01", "scdp-pool,stop=10:0.01"),
    ("k_m", "5", "scdp-pool,max_basis=5"),
    ("k_m", "20", "scdp-pool,max_basis=20"),
    ("intercept", "selected", "scdp-pool,intercept=selected"),
    ("intercept", "none", "scdp-pool,intercept=none"),
    ("cardinality", "best", "scdp-pool,cardinality=best"),
    ("cardinality", "one standard error", "scdp-pool,cardinality=one-standard-error"),
)


@dataclass(frozen=True)
class MethodSpec:
    """A method and what is not as it comes.

    Attributes
    ----------
    text
        As it was named; its key in records.
    name, settings
        What that says.
    """

    text: str
    name: str
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, text: str) -> MethodSpec:
        """Read "METHOD,setting=value,..."; `UsageError` where there is no such method or setting."""
        name, *options = text.split(",")
        if name not in METHODS:
            raise UsageError(f"unknown method '{name}' of `dkgp bench classify`; there are {', '.join(METHODS)}")
        method, settings = METHODS[name], {}
        for setting in options:
            key, equals, value = setting.partition("=")
            if not equals or key not in method.settings:
                takes = ", ".join(method.settings) or "none"
                raise UsageError(f"'{text}': {name} takes the settings {takes}; got '{setting}'")
            try:
                settings[key] = method.settings[key](value)
            except ValueError:
                raise UsageError(f"'{text}': {key} cannot be {value!r}") from None
        try:
            method.make(settings)
        except InputError as error:
            raise UsageError(f"'{text}': {error}") from None
        return cls(text, name, settings)

    @property
    def label(self) -> str:
        """Heading in a table."""
        label = METHODS[self.name].label
        return self.text if label is None else label()

    @property
    def takes_table_5(self) -> bool:
        """True if it can train on tens of thousands of samples."""
        return METHODS[self.name].table_5

    @property
    def is_probable(self) -> bool:
        """True if it has probabilities."""
        return METHODS[self.name].probable

    def require(self) -> None:
        """Raise `MissingExtraError` where a package that it needs is not installed."""
        METHODS[self.name].require()

    def made(self) -> Method:
        """The method itself."""
        return METHODS[self.name].make(self.settings)
