"""`--as-in-the-paper`: the settings that the papers print, for the commands that have their methods.

One table lists the value of each option and its place in the paper. The user's options take precedence. The paper
decides the options at their defaults. If the options that the user gave are known, it decides all the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import UsageError

Job = TypeVar("Job")

GBCD = "Bo and Sminchisescu 2008"
KERNEL_CG = "Ratliff and Bagnell 2007"
SMOLA_BARTLETT = "Smola and Bartlett 2001"
PURSUIT = "Karsmakers and others 2011"


@dataclass(frozen=True)
class Setting:
    """An option's value in a paper, and its place in that paper."""

    option: str
    value: Any
    source: str


@dataclass(frozen=True)
class Preset:
    """A method's settings in a paper; all other options keep their defaults."""

    paper: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Presets:
    """The presets of one command.

    Attributes
    ----------
    chooser : str
        The option that names the method. At its default, it is the first of `methods`.
    methods : dict of str to Preset
    nested : str
        The job's field that contains the options.
    own : tuple of str
        Options that are fields of the job itself.
    """

    chooser: str
    methods: Mapping[str, Preset]
    nested: str
    own: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The options that a paper may decide."""
        named = (setting.option for preset in self.methods.values() for setting in preset.settings)
        return tuple(dict.fromkeys((self.chooser, *named)))


DOUBLE = Setting("precision", "double", "the paper names no precision; float64 throughout")
TOLERANCE = Setting("tolerance", 1e-4, "section 3: the gradient's infinity norm")
BLOCK = Setting("block_size", 500, "section 3: a block of constant size")
PLAIN_STEPS = Setting("memory", 0, "algorithm 1, step 4: the block's own step")
SIMPLE = Preset(GBCD, (TOLERANCE, DOUBLE))
BLOCKS = Preset(GBCD, (BLOCK, PLAIN_STEPS, TOLERANCE, DOUBLE))
RISK = Preset(
    KERNEL_CG,
    (
        Setting(
            "duality_gap", 0.025, "section 4: the gap criterion; Smola and Bartlett's value, as the paper prints none"
        ),
        DOUBLE,
    ),
)
ONE_BY_ONE = Setting("per_round", 1, "algorithm 1: refitted after each choice")
KAPPA = Setting("candidates", 59, "section 4: ceil(log .05 / log .95)")
NO_SCREEN = Setting("screen", 0, "algorithm 1: refitted with every candidate")
REGRESSORS = Setting("basis_size", 2000, "section 3.2")

PRESETS: Mapping[str, Presets] = {
    "train": Presets(
        "solver",
        {
            "gbcd": Preset(
                GBCD,
                (
                    BLOCK,
                    Setting("candidates", 60, "section 3: kappa"),
                    Setting("variables_per_step", 1, "algorithm 2: solved again after each variable"),
                    PLAIN_STEPS,
                    TOLERANCE,
                    DOUBLE,
                ),
            ),
            "bcdc": BLOCKS,
            "bcdg": BLOCKS,
            "smo": SIMPLE,
            "cg": SIMPLE,
            "kcg": RISK,
            "paramcg": RISK,
        },
        "solver",
    ),
    "sparse": Presets(
        "method",
        {
            "sggp": Preset(
                SMOLA_BARTLETT, (KAPPA, ONE_BY_ONE, NO_SCREEN, Setting("gap", 0.025, "section 5: gap(alpha, alpha*)"))
            ),
            "mpgp": Preset(
                GBCD,
                (
                    REGRESSORS,
                    Setting(
                        "candidates",
                        59,
                        "Keerthi and Chu 2006: new candidates for each choice, besides the 59 best earlier ones",
                    ),
                    Setting("per_round", 1, "Keerthi and Chu 2006: refitted after each choice"),
                ),
            ),
            "sr": Preset(GBCD, (REGRESSORS,)),
            "sd": Preset(GBCD, (REGRESSORS,)),
        },
        "settings",
        ("gap", "basis_size"),
    ),
    "classify": Presets(
        "method",
        {
            "fixed-size": Preset(
                PURSUIT,
                (
                    Setting("isotropic", True, "section 5.2: exp(-|x - x'|^2 / sigma^2)"),
                    Setting("search", "annealing", "section 4.4: coupled simulated annealing, then Nelder-Mead"),
                    Setting("folds", 10, "section 5"),
                    Setting("prototypes", "k-centre", "sections 4.2 and 5.2: farthest-point clustering"),
                    Setting("pool", 2000, "section 5.3; if there are fewer samples, all of them, as in section 5.2"),
                    Setting("intercept", "selected", "equation 34: treated like any other component, nu = 1e-8"),
                    Setting("stop", None, "table 2: epsilon = -infinity, the safest"),
                    Setting("cardinality", "tenth", "section 4.5: within a tenth of the standard deviation"),
                ),
            )
        },
        "settings",
        ("method",),
    ),
}


def left_open(command: str, given: Collection[str]) -> tuple[str, ...]:
    """Return the options that a paper may decide, for a command line with the options `given`."""
    return tuple(name for name in PRESETS[command].options if name not in given)


def settled(command: str, job: Job) -> Job:
    """Return the job with the paper's settings if the job asks for them; `as_in_the_paper` then lists these settings.

    A settled job is returned unchanged.

    Raises `UsageError`: no paper prints settings of the solver or method, or no paper decides a named option.
    """
    asked: bool | tuple[str, ...] = getattr(job, "as_in_the_paper", False)
    if asked is False:
        return job
    presets = PRESETS[command]
    unknown = () if asked is True else tuple(name for name in asked if name not in presets.options)
    if unknown:
        raise UsageError(
            f"`as_in_the_paper` is true, or names options that a paper decides; `{unknown[0]}` is none of "
            f"{', '.join(presets.options)}"
        )

    def is_open(option: str) -> bool:
        return _held(presets, job, option) == _default(presets, job, option) if asked is True else option in asked

    chooser = presets.chooser
    name = _held(presets, job, chooser)
    values: dict[str, Any] = {}
    if name == _default(presets, job, chooser) and is_open(chooser):
        name = values[chooser] = next(iter(presets.methods))
    if name not in presets.methods:
        raise UsageError(
            f"`as_in_the_paper` has no settings for `{chooser}` {name}: the papers print only "
            f"those of {', '.join(presets.methods)}. Choose one of them, or leave `as_in_the_paper` out"
        )
    values |= {each.option: each.value for each in presets.methods[name].settings if is_open(each.option)}
    return cast(Job, _changed(presets, job, values))


def preset_record(command: str, job: Any) -> dict[str, Any]:
    """Return a settled job's entries for the record: paper, applied settings, and overrides; otherwise empty."""
    if job.as_in_the_paper is False:
        return {}
    presets = PRESETS[command]
    name = _held(presets, job, presets.chooser)
    preset = presets.methods[name]
    values = {each.option: _held(presets, job, each.option) for each in preset.settings}
    record = {"paper": preset.paper, presets.chooser: name, "set": {}, "otherwise": {}}
    for option, value in values.items():
        record["set" if option in job.as_in_the_paper else "otherwise"][option] = value
    return {"as_in_the_paper": record}


def announce_preset(command: str, job: Any, reporter: Reporter) -> None:
    """Report the settings that a settled job takes from its paper."""
    for record in preset_record(command, job).values():
        values = ", ".join(f"`{option}` {value}" for option, value in record["set"].items())
        apart = ", ".join(f"`{option}` {value}" for option, value in record["otherwise"].items())
        also = f"; except {apart}" if apart else ""
        reporter.note(f"{record[PRESETS[command].chooser]} as in the paper ({record['paper']}): {values}{also}")


def _holder(presets: Presets, job: Any, option: str) -> Any:
    return job if option in presets.own else getattr(job, presets.nested)


def _held(presets: Presets, job: Any, option: str) -> Any:
    return getattr(_holder(presets, job, option), option)


def _default(presets: Presets, job: Any, option: str) -> Any:
    holder = _holder(presets, job, option)
    return type(job).__dataclass_fields__[option].default if holder is job else getattr(type(holder)(), option)


def _changed(presets: Presets, job: Any, values: Mapping[str, Any]) -> Any:
    direct = {option: value for option, value in values.items() if option in presets.own}
    rest = {option: value for option, value in values.items() if option not in direct}
    decided = tuple(option for option in values if option != presets.chooser)
    nested = getattr(job, presets.nested)
    nested = nested.changed(**rest) if hasattr(nested, "changed") else replace(nested, **rest)
    return replace(job, as_in_the_paper=decided, **direct, **{presets.nested: nested})
