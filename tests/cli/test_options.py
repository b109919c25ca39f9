"""Options, flags and help: what cannot be is refused before any work, and what was meant is suggested."""

from __future__ import annotations

import ast
import itertools
import re
import resource
import shlex
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import click
import pytest
from click.testing import CliRunner

import dkgp
import dkgp.commands
from dkgp.bench.section import SECTIONS
from dkgp.cli import main
from dkgp.cli.bench import ELSEWHERE
from dkgp.cli.parameters import in_flags
from dkgp.data import open_dataset
from tests.cli.invoke import Shell, files_below, refused, run
from tests.cli.processes import ENVIRONMENT, PROGRAM
from tests.cli.refusals import COMMANDS, REFUSALS
from tests.covering import Axes, covering

# Refused once a cluster is there: what depends on its memory or address, and on what these commands read by it.
READING = ("predict", "pursue")
ON_THE_CLUSTER = ("--product-error 1e-4", "--memory-limit", "--refine-memory", "--scheduler-file", "--cluster")
ROWS = [(command, *row) for command, rows in REFUSALS.items() for row in rows]


def forbid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no cluster be started, and no machine be measured."""

    def begun(*_: Any, **__: Any) -> None:
        raise AssertionError("work was begun")

    for found in walk_packages(dkgp.commands.__path__, "dkgp.commands."):
        module = import_module(found.name)
        if hasattr(module, "open_executor"):
            monkeypatch.setattr(module, "open_executor", begun)
    for function in ("plan.plan.measure_machine", "plan.plan.measure_cluster", "models.tune_dataset"):
        monkeypatch.setattr(f"dkgp.{function}", begun)


@pytest.mark.parametrize(
    ("command", "options", "exit_code", "words"), ROWS, ids=[f"{command} {options}" for command, options, *_ in ROWS]
)
def test_what_cannot_be_is_refused_before_any_work(
    command: str,
    options: str,
    exit_code: int,
    words: str | tuple[str, ...],
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if not (command.startswith(READING) or any(option in options for option in ON_THE_CLUSTER)):
        forbid_work(monkeypatch)
    words = (words,) if isinstance(words, str) else words
    shell.refuses(f"{COMMANDS[command]} {options}", *words, code=exit_code)
    assert files_below(tmp_path) == {}


@pytest.mark.parametrize("command", [name for name, rows in REFUSALS.items() if any(code == 3 for _, code, _ in rows)])
def test_a_refusal_is_one_document_as_json(command: str, shell: Shell) -> None:
    options, exit_code, words = next(row for row in REFUSALS[command] if row[1] == 3)
    error = shell.json(f"{COMMANDS[command]} {options}", code=exit_code)["error"]
    assert error["exit_code"] == exit_code
    assert error["type"].endswith("Error")
    for word in (words,) if isinstance(words, str) else words:
        assert word in error["message"]


PACKAGE = Path(dkgp.__file__).parent
BELOW = ("data", "kernels", "cluster", "operators", "solvers", "models", "estimators")
# Options of programs that dkgp starts, or advises to start.
OTHERS = {
    "--lifetime",
    "--lifetime-stagger",
    "--nthreads",
    "--me",
    "--scheduler-file",
    "--dashboard-address",
    "--preload",
    "--resources",
}


def texts(path: Path) -> Iterator[ast.Constant]:
    """String literals of a module that are no docstrings and no spellings of options."""
    tree = ast.parse(path.read_text())
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(node.value)
        if isinstance(node, ast.keyword) and node.arg == "spellings":
            left_out |= {each for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node


@pytest.mark.parametrize("layer", BELOW)
def test_no_layer_below_the_commands_names_a_flag(layer: str) -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {flag}"
        for path in sorted((PACKAGE / layer).rglob("*.py"))
        for node in texts(path)
        for flag in re.findall(r"(?<![-\w])--[a-z][-a-z]*", str(node.value))
        if flag not in OTHERS
    ]
    assert found == []


def test_parameters_in_backticks_become_flags() -> None:
    parameters: list[click.Parameter] = [
        click.Option(["--samples", "--n", "n"]),
        click.Option(["-q", "--quiet"]),
        click.Option(["--tol", "tolerance"]),
        click.Argument(["dataset"]),
    ]
    text = "raise `tolerance` or `n`, be `quiet`, read `dataset`, see `dkgp tune` and `rank`"
    assert (
        in_flags(text, parameters) == "raise --tol or --samples, be --quiet, read DATASET, see `dkgp tune` and `rank`"
    )


def test_every_flag_named_in_a_help_exists() -> None:
    train = main.commands["train"]
    flags = {option for parameter in train.params for option in (*parameter.opts, *parameter.secondary_opts)}
    told = " ".join(parameter.help or "" for parameter in train.params if isinstance(parameter, click.Option))
    assert set(re.findall(r"(?<![-\w])--[a-z][-a-z]*", told)) <= flags
    assert "`block_size`" not in told


def test_a_run_without_hyperparameters_is_told_how_to_find_some() -> None:
    result = CliRunner().invoke(main, ["train", "train.zarr", "--out", "model.zarr"])
    assert result.exit_code == 2
    assert "dkgp tune DATASET --out hyper.json" in result.output + result.stderr


def commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))


ALL = dict(commands(main))


def test_the_commands_of_this_release() -> None:
    here = {
        "fit",
        "krige",
        "audit",
        "ingest",
        "tune",
        "plan",
        "train",
        "sparse",
        "classify",
        "pursue",
        "predict",
        "evaluate",
        "export",
        "info",
        "demo",
        "example",
        "bench",
        "warm-up",
    }
    as_jobs = {"serve", "submit", "jobs", "status", "logs", "cancel", "resume", "wait", "token"}
    assert {names[0] for names in ALL} == here | as_jobs
    below = {
        group: {names[1] for names in ALL if names[0] == group and len(names) == 2}
        for group in ("bench", "submit", "token")
    }
    assert below["bench"] == {"tiles", "products", "solve", "overhead", "scaling", "messages", *ELSEWHERE}
    assert below["token"] == {"add", "list", "revoke"}
    assert below["submit"] == {"train", "sparse", "classify", "tune", "predict", "evaluate", "fit", "krige"}


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_help_shows_an_example_and_every_option_is_explained(names: tuple[str, ...]) -> None:
    result = run(*names, "--help")
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert f"  dkgp {' '.join(names)}" in result.output
    for parameter in ALL[names].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} has no help"


@pytest.mark.parametrize(
    "names", [n for n in ALL if n not in (("bench",), ("token",), ("krige",), ("submit", "krige"))], ids=" ".join
)
def test_every_command_takes_the_common_options(names: tuple[str, ...]) -> None:
    options = {option for parameter in ALL[names].params for option in parameter.opts}
    assert {"--json", "--quiet", "--verbose", "--debug"} <= options


GROUPED = ("train", "predict", "tune", "fit", "sparse", "classify", "ingest")
LAST = ("Further options", "Checkpoints, records and limits", "Output on the terminal", "Where the work runs")


@pytest.mark.parametrize("name", GROUPED)
def test_common_options_come_first_and_the_cluster_last(name: str) -> None:
    lines = run(name, "--help").output.splitlines()
    headings = [
        line[:-1] for line in lines if re.fullmatch(r"[A-Z].*:", line) and not line.startswith(("As in", "Settings of"))
    ]
    assert headings[0] == "Options"
    assert [heading for heading in headings if heading in LAST] == [each for each in LAST if each in headings]
    assert headings[-1] == ("Output on the terminal" if name in ("fit", "ingest") else "Where the work runs")
    shown = lines.index("Output on the terminal:")
    flags = [line.split()[0].rstrip(",") for line in lines[shown + 1 :] if line.startswith("  -")]
    assert flags[:4] == ["--json", "-q", "-v", "--debug"]
    assert flags[4] in ("-h", "--help")  # click keeps the first that a command was shown with
    common = lines[lines.index("Options:") : lines.index(f"{headings[1]}:")]
    assert any(line.split()[:1] == ["--overwrite"] for line in common)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("trian train.zarr", "No such command 'trian'. Did you mean train?"),
        ("zzz", "There are audit, bench, cancel, classify"),
        ("bench tile", "Did you mean tiles?"),
        ("submit trian", "Did you mean train?"),
        ("train x.zarr --hypr h.json", "--hyper"),
        ("ingest a.csv b.zarr --tarqet y", "--target"),
        ("train x.zarr --hyper h.json --out m.zarr --solver gbdc", "Did you mean gbcd?"),
        ("tune x.zarr --out h.json --objective likelyhood", "Did you mean likelihood?"),
    ],
)
def test_a_slip_is_told_what_was_meant(typed: str, meant: str) -> None:
    result = run(*typed.split())
    assert result.exit_code == 2
    assert meant in result.stderr


def test_help_comes_at_once() -> None:

    def processor_seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = processor_seconds()
    shown = subprocess.run([*PROGRAM, "--help"], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    # Not by the clock: other processes may have the cores.
    assert processor_seconds() - before < 1.0
    assert "Exit codes" in shown.stdout


def test_nothing_heavy_is_imported_for_help() -> None:
    heavy = "{'numpy', 'numba', 'zarr', 'distributed', 'scipy', 'rich', 'matplotlib', 'httpx', 'fastapi'}"
    code = f"import sys, dkgp.cli; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([PROGRAM[0], "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_version() -> None:
    assert dkgp.__version__ in run("--version").output


TABLE = """sample_id,cut,grade,sold,size,price
a1,good,low,2021-01-01,1.5,10
b2,fair,high,2021-01-02,,12
c3,good,low,2021-01-03,2.5,11
d4,ideal,high,2021-01-04,2.0,?
e5,ideal,low,2021-01-05,2.1,14
"""
GIVEN = (
    ("--categorical", "cut"),
    ("--ordinal", "grade=low,high"),
    ("--date", "sold:%Y-%m-%d"),
    ("--drop", "size"),
    ("--id", "sample_id"),
    ("--missing", "?"),
    ("--drop-missing",),
    ("--impute", "median"),
)


def asked_of(words: list[str]) -> list[tuple[str, str]]:
    """Pairs of an option and each of the names or texts that it is given."""
    pairs = []
    for position, word in enumerate(words):
        if word.startswith("--"):
            values = words[position + 1].split(",") if position + 1 < len(words) else [""]
            pairs += [(word, value) for value in values] if word != "--drop-missing" else [(word, "")]
    return pairs


CHOICES = [chosen for count in range(len(GIVEN) + 1) for chosen in itertools.combinations(GIVEN, count)]


def any_three() -> list[tuple[tuple[str, ...], ...]]:
    """Choices that hold each three of the options together, each without the others, and all ways between."""
    cases: list[Axes] = [{option: option in chosen for option in GIVEN} for chosen in CHOICES]
    return [CHOICES[place] for place in covering(cases, 3)]


def test_what_is_suggested_works_beside_what_was_given_and_repeats_none_of_it(tmp_path: Path) -> None:
    suggests_what_works(any_three(), tmp_path)


@pytest.mark.slow
def test_what_is_suggested_works_beside_all_that_can_be_given(tmp_path: Path) -> None:
    suggests_what_works(CHOICES, tmp_path)


def suggests_what_works(choices: list[tuple[tuple[str, ...], ...]], tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(TABLE)
    told = 0
    for number, chosen in enumerate(choices):
        given = [word for option in chosen for word in option]
        command = ("ingest", table, tmp_path / f"{number}.zarr", "--target", "price", *given)
        first = run(*command)
        suggested: list[str] = []
        if first.exit_code:
            beside = " to those that you gave" if given else ""
            _, _, line = first.stderr.rstrip().rpartition(f"\nTo read the table, add these options{beside}: ")
            suggested = shlex.split(line)
            assert suggested[0].startswith("--"), first.stderr
            told += 1
            second = run(*command, *suggested)
            assert second.exit_code == 0, (given, suggested, second.stderr)
        once = asked_of([*given, *suggested])
        assert len(set(once)) == len(once), (given, suggested)
        columns = [name.partition("=")[0].partition(":")[0] for option, name in once if option in _OF_COLUMNS]
        assert len(set(columns)) == len(columns), (given, suggested)
        for option, column in (("--categorical", "cut"), ("--ordinal", "grade"), ("--date", "sold")):
            if option in given:
                report = first.stderr.partition("Columns to look at")[2]
                assert f"  '{column}'" not in report
        if "--impute" in given and "--drop-missing" not in given:
            # The row whose target is missing is left out; gaps of features are filled in.
            assert open_dataset(str(tmp_path / f"{number}.zarr")).n_samples == 4
    assert told > len(choices) // 2


_OF_COLUMNS = ("--categorical", "--ordinal", "--date", "--drop", "--id")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """dkgp without dkgp-benchmarks."""
    here = {name: section for name, section in SECTIONS.all().items() if name not in ELSEWHERE}
    monkeypatch.setattr(SECTIONS, "_found", here)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("arguments", [(), ("--help",), ("--report", "folder", "--json")], ids=" ".join)
def test_a_section_that_is_not_installed_says_what_to_install(arguments: tuple[str]) -> None:
    result = run("bench", "papers", *arguments)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "`dkgp bench papers` needs the package dkgp-benchmarks, which is not installed" in said
    assert "pip install ./benchmarks" in said


@pytest.mark.usefixtures("alone")
def test_help_lists_what_is_there_and_names_the_rest() -> None:
    shown, _, missing = run("bench", "--help").stdout.partition("Not installed:")
    for name in ("tiles", "products", "solve", "overhead", "scaling", "messages"):
        assert f"  {name} " in shown
    for name in ELSEWHERE:
        assert name in missing
        assert f"  {name} " not in shown
    assert "pip install ./benchmarks" in " ".join(missing.split())
    refused(run("bench", "nonesuch"), "No such command 'nonesuch'", exit_code=2)


def test_nothing_is_missing_where_all_is_installed() -> None:
    assert "Not installed" not in run("bench", "--help").stdout


def test_sections_without_a_race_refuse_it_in_words() -> None:
    result = run("bench", "products", "--null")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "--null cannot be used with products: its baselines run twice in every repeat in any case" in said
    assert "--null" not in run("bench", "products", "--help").stdout


def test_quiet_commands_that_write_an_output_print_nothing(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,y\n" + "".join(f"{i},{i * i}\n" for i in range(20)))
    result = run("ingest", tmp_path / "d.csv", tmp_path / "d.zarr", "--target", "y", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert "dataset" in run("info", tmp_path / "d.zarr", "--quiet").stdout
