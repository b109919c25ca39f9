"""Options of a classifier, as decorators by the methods that have them, and the settings that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dkgp.cli.declared import click_option, click_type, declared_options
from dkgp.cli.options import stop_rule, together
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.models.classification.fixed_size.settings import FixedSizeSettings

__all__ = [
    "GROUPS",
    "basis_options",
    "fixed_size_options",
    "fixed_size_settings",
    "label_options",
    "likelihood_options",
    "machine_options",
    "solve_options",
]

F = TypeVar("F", bound=Callable[..., Any])


def numbers(text: str) -> tuple[float, ...]:
    """Read numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 0.01,0.1,1.") from None


def readable(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a type for click of text that can be read so, and stays text: a batch script gives it again."""

    def check(text: str) -> str:
        read(text)
        return text

    return click_type(check)


def _prototypes_option() -> list[click.Option]:
    from dkgp.models.classification.prototypes import DEFAULT_PROTOTYPES, PROTOTYPES

    text = "How the pool is chosen among the samples; greedy alone looks at the labels."
    return [click_option(Option("prototypes", text, default=DEFAULT_PROTOTYPES, choices=PROTOTYPES))]


def _solver_option() -> list[click.Option]:
    from dkgp.solvers.registry import AUTO, solver_names
    from dkgp.solvers.risk import RISK_HELP, RISK_METHODS

    names = tuple(dict.fromkeys((AUTO, *solver_names(), *RISK_METHODS)))
    told = "; ".join(f"{name}: {words}" for name, words in RISK_HELP.items())
    text = f"Who solves for it. Of exact as for `dkgp train`; of logistic and gp one of {told}. auto: the quickest."
    return [click_option(Option("solver", text, default=AUTO, choices=names))]


def _basis_option() -> list[click.Option]:
    from dkgp.models.classification.basis.settings import BASES, DEFAULT_BASIS

    text = f"How the basis is chosen among the samples.  [default: {DEFAULT_BASIS}]"
    return [click_option(Option("basis", text, choices=BASES))]


def label_options(function: F) -> F:
    """Method, hyperparameters, and how samples count."""
    return together(
        click.option(
            "--method",
            type=click.Choice(["fixed-size", "exact", "logistic", "gp"]),
            default="fixed-size",
            show_default=True,
            help="fixed-size: a sum over a few prototypes, chosen by sparse conjugate directions pursuit; exact: the "
            "LS-SVM of all samples, each decision within a proven bound; logistic: kernel logistic regression, each "
            "probability within a proven interval; gp: Gaussian process classification by Laplace's approximation, "
            "probabilities averaged over it.",
        ),
        click.option(
            "--hyper",
            metavar="FILE",
            help="Hyperparameters to start from, as `dkgp tune` writes them.  [default: found from the labels]",
        ),
        click.option(
            "--class-weight",
            multiple=True,
            metavar="balanced|NAME=W",
            help="What a sample of a class counts: all classes the same together, or each by name; repeatable.",
        ),
        click.option(
            "--isotropic",
            is_flag=True,
            help="One length scale for all features, where hyperparameters are found.",
        ),
    )(function)


def machine_options(function: F) -> F:
    """Options of either least-squares support vector machine."""
    return together(
        click.option(
            "--intercept",
            type=click.Choice(["first", "selected", "none"]),
            default="first",
            show_default=True,
            help="first: before any prototype; selected: competing with them; none.",
        ),
        click.option(
            "--no-probability",
            is_flag=True,
            help="Decisions and classes alone, without the map to probabilities.",
        ),
    )(function)


def likelihood_options(function: F) -> F:
    """The likelihood of logistic regression and of a Gaussian process, and its weight."""
    return together(
        click.option(
            "--link",
            type=click.Choice(["logit", "probit"]),
            default="logit",
            show_default=True,
            help="Probability of a class by its latent function f: 1 / (1 + exp(-f)), or the normal distribution's.",
        ),
        click.option(
            "--multi-class",
            type=click.Choice(["softmax", "ovr"]),
            help="Several classes together, or each against the rest.  [default: softmax of logistic, ovr of gp]",
        ),
        click.option(
            "--regularisation",
            type=float,
            default=1.0,
            show_default=True,
            metavar="LAMBDA",
            help="Of logistic: the penalty's weight; hyperparameters that are found from the labels are for 1.",
        ),
    )(function)


def basis_options(function: F) -> F:
    """A basis for logistic regression and for a Gaussian process."""
    return together(
        click.option(
            "--basis-size",
            type=int,
            metavar="M",
            help="Train on a basis of so many samples, whose predictions take as many kernel entries.  "
            "[default: on all samples]",
        ),
        declared_options(_basis_option),
        click.option(
            "--certify",
            is_flag=True,
            help="Also prove how far decisions are from those of the minimiser over all functions: a product more.",
        ),
    )(function)


def fixed_size_options(function: F) -> F:
    """The pool, the search and the cardinality of a fixed-size classifier."""
    return together(
        click.option(
            "--pool", type=int, default=2000, show_default=True, metavar="M", help="Prototypes to choose among."
        ),
        declared_options(_prototypes_option),
        click.option(
            "--max-basis", type=int, metavar="K", help="Choose so many prototypes at most.  [default: the pool]"
        ),
        click.option(
            "--candidates",
            type=int,
            metavar="RHO",
            help="Look at so many of the pool, drawn at random, in each step; 59 in the paper.  [default: all]",
        ),
        click.option(
            "--given-noise",
            is_flag=True,
            help="Take the noise variance of --hyper as it is. Without it, a fixed-size one has its own, by "
            "cross-validation.",
        ),
        click.option("--folds", type=int, default=10, show_default=True, help="Of cross-validation, stratified."),
        click.option(
            "--search",
            type=click.Choice(["profile", "annealing", "none"]),
            default="profile",
            show_default=True,
            help="For the scale of the kernel's length scales. profile: a line search; annealing: coupled simulated "
            "annealing and Nelder-Mead, the paper's; none: the kernel as it starts.",
        ),
        click.option(
            "--noise-variances",
            type=readable(numbers),
            metavar="S2,...",
            help="Noise variances 1 / gamma to choose among.  [default: decades, finer about the best]",
        ),
        click.option(
            "--cardinality",
            type=click.Choice(["tenth", "best", "one-standard-error"]),
            default="tenth",
            show_default=True,
            help="How many prototypes: the fewest within a tenth of the folds' standard deviation of the least score; "
            "those of the least score; the fewest within one standard error.",
        ),
        click.option(
            "--stop",
            type=readable(stop_rule),
            default="10,0.001",
            show_default=True,
            metavar="STEPS,SHARE|none",
            help="End a path once so many steps improved the score by less than this share.",
        ),
    )(function)


def solve_options(function: F) -> F:
    """The solve of a classifier of all samples."""
    return together(
        declared_options(_solver_option),
        click.option(
            "--tol",
            "tolerance",
            type=float,
            default=1e-3,
            show_default=True,
            help="Solve until decisions are about so near to the exact ones (of a basis, to its own best), whose "
            "margins are at -1 and 1; a probability is then within a quarter of it.",
        ),
        click.option(
            "--gap",
            type=float,
            metavar="SHARE",
            help="Of logistic and gp: stop where the risk is proven to be within this share of the least, instead.",
        ),
        click.option("--max-passes", type=float, help="Stop after so many passes over the kernel's columns."),
        click.option("--max-seconds", type=float, help="Stop after so many seconds."),
        click.option(
            "--tree-error",
            type=float,
            metavar="E",
            help="Take kernel products by a tree, each entry good to E, as for `dkgp train`.",
        ),
        click.option(
            "--by-reference", is_flag=True, help="Let the model refer to DATASET instead of copying its inputs."
        ),
    )(function)


# Headings of the help, and the options below each.
GROUPS = {
    "Options of every method": ("out", "method", "hyper", "class_weight", "isotropic", "seed"),
    "Options of fixed-size": (
        "as_in_the_paper",
        "pool",
        "prototypes",
        "max_basis",
        "candidates",
        "given_noise",
        "folds",
        "search",
        "noise_variances",
        "cardinality",
        "stop",
    ),
    "Options of fixed-size and exact": ("intercept", "no_probability"),
    "Options of logistic and gp": ("link", "multi_class", "regularisation"),
    "Options of exact, and of logistic and gp on all samples": (
        "solver",
        "tolerance",
        "gap",
        "max_passes",
        "max_seconds",
        "tree_error",
        "by_reference",
    ),
    "Options of logistic and gp on a basis (and --tol)": ("basis_size", "basis", "certify"),
}


def fixed_size_settings(options: dict[str, Any]) -> FixedSizeSettings:
    """Take the settings of a fixed-size classifier out of a command's options."""
    from dkgp.models.classification.fixed_size.settings import FixedSizeSettings

    probability, stop = not options.pop("no_probability"), stop_rule(options.pop("stop"))
    given = options.pop("noise_variances")
    names = FixedSizeSettings.__dataclass_fields__.keys() - {"probability", "stop", "noise_variances"}
    return FixedSizeSettings(
        **{name: options.pop(name) for name in names},
        probability=probability,
        stop=stop,
        noise_variances=None if given is None else numbers(given),
    )
