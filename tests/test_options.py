"""One declaration of an option: flag, help, JSON schema, checks, places and what decides a result follow from it."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
import sys
from dataclasses import dataclass, field, fields, is_dataclass
from types import ModuleType
from typing import Annotated, Any, Literal

import click
import numpy as np
import pytest
from click.testing import CliRunner

import dkgp
from dkgp.cli.job_commands import JOB_COMMANDS, JobCommand, add_commands
from dkgp.cli.parameters import job_parameter
from dkgp.cli.service import as_job
from dkgp.commands.batch import batch_script
from dkgp.commands.recipe import GROUPS, RECIPES, Recipe, command, recipe_called, recipe_of
from dkgp.commands.reporting.layout import Figure, sheet_of
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError, UsageError
from dkgp.models import SparseSettings, VarianceSettings
from dkgp.options import (
    SEED,
    ByName,
    Part,
    check_ranges,
    deciding_values,
    declared_options,
    foreign_options,
    make,
    options_of,
    value_at,
)
from dkgp.registry import Group, Option
from dkgp.service.specification import changes, read, schema

BAKED, FRIED = Group("Options of baking", ("bake",)), Group("Options of frying", ("fry",))


def pair(text: str) -> tuple[int, float] | None:
    if text == "none":
        return None
    first, _, second = text.partition(",")
    return int(first), float(second)


@dataclass(frozen=True)
class Oven:
    heat: Annotated[float, Option(help="In degrees.", above=0, group=BAKED)] = 180.0
    levels: Annotated[int, Option(help="Trays.", least=1, group=BAKED)] = 2
    fan: Annotated[bool, Option(help="Without the fan.", spellings=("--no-fan",), group=BAKED)] = True
    pause: Annotated[tuple[int, float] | None, Option(help="When.", type=pair, shown="10,0.5", group=BAKED)] = (10, 0.5)
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Glaze:
    sugar: Annotated[float, Option(help="Grams.", least=0)] = 20.0
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class CookJob:
    """Something to cook."""

    recipe: Annotated[str, Option(place="read", argument=True)]
    out: Annotated[str, Option(help="The plate.", metavar="PLATE", place="write")]
    how: Annotated[Literal["bake", "fry"], Option(help="The way.")] = "bake"
    oven: Annotated[Oven, Part()] = field(default_factory=Oven)
    glaze: Annotated[Glaze | None, Part("glaze", "Glaze it.", prefix="glaze_")] = None
    oil: Annotated[float | None, Option(help="Spoons.", above=0, group=FRIED)] = None
    turned: Annotated[int, Option(help="How often.", least=0, group=FRIED, decides=False)] = 1
    guests: Annotated[tuple[str, ...], Option(help="Who comes.")] = ()
    slack: Annotated[bool | None, Option(help="Either.", spellings=("--slack/--no-slack",))] = None
    size: Annotated[tuple[int, int] | None, Option(help="Both.", metavar="W H")] = None

    def __post_init__(self) -> None:
        check_ranges(self)


def made(*arguments: str) -> CookJob:
    """The job of a command line."""
    found: list[CookJob] = []
    parameters = [job_parameter(each) for each in declared_options(CookJob).values()]
    command = click.Command("cook", params=parameters, callback=lambda **options: found.append(make(CookJob, options)))
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_what_is_not_given_is_the_dataclass_default() -> None:
    assert made("r", "--out", "p") == CookJob("r", "p")


def test_flags_reach_the_fields_they_are_declared_on() -> None:
    job = made(
        *(
            "r",
            "--out",
            "p",
            "--how",
            "fry",
            "--oil",
            "2",
            "--turned",
            "0",
            "--heat",
            "90",
            "--no-fan",
            "--pause",
            "3,1",
        ),
        *("--guests", "a", "--guests", "b", "--no-slack", "--size", "3", "4", "--glaze", "--glaze-sugar", "7"),
        *("--seed", "5"),
    )
    assert job == CookJob(
        *("r", "p", "fry"),
        oven=Oven(90.0, fan=False, pause=(3, 1.0), seed=5),
        glaze=Glaze(7.0, seed=5),
        oil=2.0,
        turned=0,
        guests=("a", "b"),
        slack=False,
        size=(3, 4),
    )
    assert made("r", "--out", "p", "--pause", "none").oven.pause is None
    assert made("r", "--out", "p", "--slack").slack is True


def test_a_seed_alone_asks_for_no_part() -> None:
    assert made("r", "--out", "p", "--seed", "3") == CookJob("r", "p", oven=Oven(seed=3))


def test_options_of_a_part_need_it() -> None:
    with pytest.raises(UsageError, match="`glaze_sugar` belongs to `glaze`, which was not given"):
        made("r", "--out", "p", "--glaze-sugar", "7")


def test_a_part_speaks_of_its_options_by_their_names_in_the_command() -> None:
    with pytest.raises(InputError, match="`glaze_sugar` must not be negative; got -1.0"):
        made("r", "--out", "p", "--glaze", "--glaze-sugar", "-1")


@pytest.mark.parametrize("wrong", ["many", "a,b"])
def test_text_that_cannot_be_read_is_refused_by_the_command_line(wrong: str) -> None:
    with pytest.raises((click.BadParameter, ValueError)):
        made("r", "--out", "p", "--size", wrong, wrong)


def test_text_stays_text_for_a_batch_script() -> None:
    parameter = job_parameter(declared_options(CookJob)["pause"])
    command = click.Command("cook", params=[parameter])
    with command.make_context("cook", ["--pause", "3,1"]) as context:
        assert context.params == {"pause": "3,1"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"heat": 0.0}, "`heat` must be positive and finite; got 0.0"),
        ({"heat": math.inf}, "`heat` must be positive and finite; got inf"),
        ({"heat": math.nan}, "`heat` must be positive and finite; got nan"),
        ({"levels": 0}, "`levels` must be at least 1; got 0"),
        ({"levels": np.int64(0)}, "`levels` must be at least 1; got 0"),
        ({"levels": math.inf}, "`levels` must be at least 1; got inf"),
        ({"seed": -1}, "`seed` must not be negative; got -1"),
    ],
)
def test_ranges(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refusal:
        Oven(**values)
    assert str(refusal.value) == words


def test_a_whole_number_that_no_float_holds_is_in_range() -> None:
    assert Oven(levels=10**400).levels == 10**400
    with pytest.raises(InputError, match="`levels` must be at least 1"):
        Oven(levels=-(10**400))


def test_choices() -> None:
    with pytest.raises(InputError, match="`how` must be one of bake, fry; got 'boil'"):
        CookJob("r", "p", "boil")  # type: ignore[arg-type]


def test_options_of_other_methods() -> None:
    job = CookJob("r", "p", "fry", oven=Oven(90.0), oil=1.0)
    assert [each.option.name for each in foreign_options(job, "fry")] == ["heat"]
    assert [each.option.name for each in foreign_options(job, "bake")] == ["oil"]
    assert foreign_options(CookJob("r", "p"), "fry") == []


def test_what_decides_a_result() -> None:
    job = CookJob("r", "p", "fry", oven=Oven(seed=4), oil=1.0, turned=3)
    assert deciding_values(job, "fry", "oven") == {"oil": 1.0, "seed": 4}
    assert set(deciding_values(job, "bake", "oven")) == {"heat", "levels", "fan", "pause", "seed"}


def test_two_options_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Twice:
        heat: Annotated[float, Option(help="Of the room.")] = 20.0
        oven: Annotated[Oven, Part()] = field(default_factory=Oven)

    # Annotations are read where the class stands.
    Twice.__annotations__ = {"heat": Annotated[float, Option(help="Of the room.")], "oven": Annotated[Oven, Part()]}
    with pytest.raises(UsageError, match="two options are called 'heat'"):
        declared_options(Twice)


def test_the_schema_tells_what_the_help_tells() -> None:
    properties = schema(CookJob)["properties"]
    assert properties["oil"]["description"] == "Spoons."
    oven = properties["oven"]["properties"]
    assert oven["heat"] == {"type": "number", "description": "In degrees.", "default": 180.0, "exclusiveMinimum": 0}
    assert read(CookJob, {"recipe": "r", "out": "p", "oven": {"heat": 3.0}}, "cook").oven == Oven(3.0)
    with pytest.raises(InputError, match="`levels` must be at least 1; got 0") as refused:
        read(CookJob, {"recipe": "r", "out": "p", "oven": {"levels": 0}}, "cook")
    assert refused.value.parameter == "oven"
    everything = {"recipe": "r", "out": "p", "oven": {"heat": 3.0, "pause": [3, 1]}, "glaze": {}, "guests": ["a"]}
    assert changes(read(CookJob, everything, "cook")) == {**everything, "oven": {"heat": 3.0, "pause": [3, 1.0]}}


# --------------------------------------------------------------------------------------------------- dkgp's own jobs

COMMANDS = JOB_COMMANDS
# Fields that no user sets by an option: what others fill in, or sizes that an option with the same meaning settles.
WITHOUT = {
    "demo": {"subset"},
    "fit": {"cluster"},
    "SparseSettings": {"basis_size", "gap"},
    "SolverOptions": {"own"},
    "ClusterOptions": {"connect_timeout_seconds", "cache_bytes", "secret_settings"},
}


def test_jobs_are_run_by_commands_that_declare_them() -> None:
    assert set(COMMANDS) == {
        *("train", "sparse", "classify", "pursue", "tune", "predict", "evaluate", "export", "plan", "demo"),
        *("fit", "ingest", "info", "warm-up", "audit", "example"),
        *("krige variogram", "krige fit", "krige map", "krige grid", "krige blocks", "krige simulate"),
        "krige check",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_field_of_a_job_is_an_option_or_a_part(name: str) -> None:
    kind = RECIPES[name].kind
    reached = {path[0] for each in COMMANDS[name].declared().values() for path in each.paths}
    assert {each.name for each in fields(kind)} - reached == WITHOUT.get(name, set())
    parts = {type(each) for each in (part.default_factory() for part in fields(kind) if callable(part.default_factory))}
    for part in filter(is_dataclass, parts):
        missing = {each.name for each in fields(part)} - options_of(part).keys()
        assert missing == WITHOUT.get(part.__name__, set())


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_help_and_defaults_are_the_declared(name: str) -> None:
    command = COMMANDS[name]
    parameters = {str(parameter.name): parameter for parameter in command.params}
    declared = command.declared()
    assert parameters.keys() - declared.keys() == {"as_json", "quiet", "verbose", "debug", *command.here_only}
    shown = " ".join(command.get_help(click.Context(command)).split())
    for each in declared.values():
        parameter = parameters[each.option.name]
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{each.option.name} has no help"
            assert max(parameter.opts, key=len) in shown


@pytest.mark.parametrize("name", ["train", "sparse", "classify", "tune", "predict", "evaluate"])
def test_the_service_takes_the_same_fields_and_says_the_same(name: str) -> None:
    kind = RECIPES[name].kind
    properties = schema(kind)["properties"]
    assert set(properties) == {each.name for each in fields(kind)} - {"cluster"}
    for field_name, option in options_of(kind).items():
        assert properties[field_name].get("description", "") == option.help


def test_places_are_declared() -> None:
    places = {
        name: {each.option.name for each in command.declared().values() if each.option.place == "write"}
        for name, command in COMMANDS.items()
    }
    trained = {"out", "checkpoint", "plot", "log_json"}
    assert places["train"] == trained | {"tiles"}
    assert places["sparse"] == places["classify"] == trained
    assert (places["tune"], places["predict"], places["evaluate"]) == ({"out", "plot"}, {"out"}, {"plot"})


def test_a_new_option_of_a_job_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("dkgp.commands.classify")
    group = Group("Options of fixed-size", ("fixed-size",))

    @dataclass(frozen=True)
    class ClassifyJob(module.ClassifyJob):  # type: ignore[name-defined,misc]
        patience: int = 3

    ClassifyJob.__annotations__ = {"patience": Annotated[int, Option(help="Looks.", least=1, group=group)]}
    monkeypatch.setattr(module, "ClassifyJob", ClassifyJob)
    command = JobCommand(RECIPES["classify"])
    assert "--patience INTEGER" in command.get_help(click.Context(command))
    with command.make_context("classify", ["d", "--out", "m", "--patience", "5"]) as context:
        options = {name: value for name, value in context.params.items() if name in command.declared()}
        job = command.job(options)
    assert value_at(job, ("patience",)) == 5
    assert deciding_values(job, "fixed-size", "settings")["patience"] == 5
    assert [each.option.name for each in foreign_options(job, "exact")] == ["patience"]
    assert schema(ClassifyJob)["properties"]["patience"]["description"] == "Looks."
    with pytest.raises(InputError, match="`patience` must be at least 1"):
        ClassifyJob("d", "m", patience=0)


def test_a_new_command_of_a_group_is_a_job_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, help, exit code, submission and batch scripts follow from the declaration."""

    @command("Heats evenly.", "dkgp bake bread flour.zarr --heat 200", must_converge=True)
    @dataclass(frozen=True)
    class BakeBreadJob:
        dataset: Annotated[str, Option(place="read", argument=True)]
        heat: Annotated[float, Option(help="In degrees.", above=0)] = 180.0

    def run_bake_bread(job: BakeBreadJob, reporter: Reporter) -> dict[str, Any]:
        return {"command": "bake bread", "heat": job.heat, "converged": job.heat > 100}

    def tables_bake_bread(document: dict[str, Any]) -> list[Any]:
        return [sheet_of("Baked", [Figure("heat", "{heat:g} degrees")], document)]

    module = ModuleType("bakery")
    named = {"BakeBreadJob": BakeBreadJob, "run_bake_bread": run_bake_bread, "tables_bake_bread": tables_bake_bread}
    vars(module).update(named)
    monkeypatch.setitem(sys.modules, "bakery", module)
    monkeypatch.setitem(GROUPS, "bake", "Bake and roast.")
    recipe = Recipe("bake bread", "Bake the dataset.", module="bakery", as_job=True)
    monkeypatch.setitem(RECIPES, recipe.name, recipe)

    for above, before in ((click.Group("main"), "dkgp"), (click.Group("submit"), "dkgp submit")):
        add_commands(above, {recipe.name: JobCommand(recipe)})
        shown = CliRunner().invoke(above, ["bake", "--help"]).output
        assert "Bake and roast." in shown
        assert f"{before} bake bread --help" in shown
    run = CliRunner().invoke
    assert "Bake the dataset." in run(above, ["bake", "--help"]).output
    shown = run(above, ["bake", "bread", "--help"]).output
    assert all(words in shown for words in ("Heats evenly.", "--heat FLOAT", "In degrees.", "flour.zarr --heat 200"))
    baked = run(above, ["bake", "bread", "flour.zarr", "--heat", "90", "--json"])
    assert (baked.exit_code, json.loads(baked.output)["heat"]) == (4, 90.0)
    assert "150 degrees" in run(above, ["bake", "bread", "flour.zarr", "--heat", "150"]).output
    assert recipe_called(["bake", "bread", "flour.zarr"]) is recipe_of(BakeBreadJob("flour.zarr")) is recipe
    assert schema(recipe.kind)["properties"]["heat"]["exclusiveMinimum"] == 0
    script = batch_script(["dkgp", "bake", "bread", "flour.zarr"], name="bread", settings={}, resume=False)
    assert "-m dkgp bake bread flour.zarr" in script
    assert as_job(JobCommand(recipe)).get_short_help_str() == "Submit `dkgp bake bread` as a job."


def test_options_by_name_and_options_that_set_several_fields() -> None:
    """A mapping takes options that are declared elsewhere; one option may stand for several fields."""
    spices = Option("spices", multiple=True, collect=lambda texts: tuple("".join(texts)))
    cover = Option(
        choices=("auto", "none", "lid"),
        sets=lambda text: {"covered": text != "none", "oven.cover": None if text == "auto" else text},
    )

    @dataclass(frozen=True)
    class Oven:
        cover: str | None = None
        options: Annotated[dict[str, Any], ByName(lambda: [spices])] = field(default_factory=dict)

    @dataclass(frozen=True)
    class RoastJob:
        oven: Annotated[Oven, Part()] = field(default_factory=Oven)
        covered: Annotated[bool, cover] = True
        fan: Annotated[bool, Option(spellings=("--fan/--no-fan",), shown="fan")] = True

    Oven.__annotations__ = {"cover": str | None, "options": Annotated[dict[str, Any], ByName(lambda: [spices])]}
    RoastJob.__annotations__ = {
        "oven": Annotated[Oven, Part()],
        "covered": Annotated[bool, cover],
        "fan": Annotated[bool, Option(spellings=("--fan/--no-fan",), shown="fan")],
    }
    assert set(declared_options(RoastJob)) == {"spices", "covered", "fan"}
    parse = click.Command("roast", params=[job_parameter(each) for each in declared_options(RoastJob).values()])
    for typed, expected in (
        ([], RoastJob()),
        (["--no-fan", "--covered", "lid"], RoastJob(Oven("lid"), fan=False)),
        (["--fan", "--covered", "none", "--spices", "ab", "--spices", "c"],
         RoastJob(Oven("none", {"spices": ("a", "b", "c")}), covered=False)),
    ):  # fmt: skip
        assert make(RoastJob, parse.make_context("roast", list(typed)).params) == expected
    assert schema(RoastJob)["properties"]["oven"]["properties"]["options"]["type"] == "object"
    assert "[default: fan]" in parse.get_help(click.Context(parse))


# ------------------------------------------------------------------------------------------------------- estimators

# scikit-learn's words for options of the command line.
WORDS = {"tol": "tolerance", "random_state": "seed", "n_basis": "basis_size"}
ESTIMATORS = {
    "GPRegressor": "train",
    "SparseGPRegressor": "sparse",
    "FixedSizeLSSVC": "classify",
    "LSSVC": "classify",
    "KernelLogisticClassifier": "classify",
    "GPClassifier": "classify",
}
# What None stands for there, by the method.
SETTLED = {"basis": ("pivoted",), "multi_class": ("softmax", "ovr"), "variance_gap": (VarianceSettings().gap,)}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimators_defaults_are_those_of_the_option_of_the_same_meaning(name: str) -> None:
    estimator = getattr(dkgp, name)
    declared = COMMANDS[ESTIMATORS[name]].declared()
    shared = 0
    for parameter in inspect.signature(estimator).parameters.values():
        option = declared.get(WORDS.get(parameter.name, parameter.name))
        if option is None or parameter.name in ("kernel", "class_weight"):
            continue
        shared += 1
        default = option.option.default
        if default is None and parameter.name in SETTLED:
            assert parameter.default is None or parameter.default in SETTLED[parameter.name]
        else:
            assert parameter.default == default, parameter.name
        assert re.search(rf"[ ,]{parameter.name}\b", estimator.__doc__), f"{parameter.name} is not documented"
    assert shared >= 4


def test_settings_document_their_options() -> None:
    for name, option in options_of(SparseSettings).items():
        assert f"\n{name} : " in str(SparseSettings.__doc__)
        assert " ".join(option.help.split()) in " ".join(str(SparseSettings.__doc__).split())
