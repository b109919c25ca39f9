"""Examples of README and pages work: Python runs, commands parse, links lead to a place."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from dkgp.cli import main
from dkgp.cluster import configured_options
from dkgp.commands.example import ExampleJob, run_example
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import ExitCode
from dkgp.models import read_hyperparameters

ROOT = Path(__file__).resolve().parents[2]
DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in path.parts]
PAGES = [ROOT / "README.md", *DOCS, *sorted((ROOT / "deploy").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
# A page may say how its examples get along with less: <!-- smaller in tests: n = 4000 -> n = 400 -->
SMALLER = re.compile(r"<!-- smaller in tests: (.*?) -->")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def program(page: Path) -> str:
    """All Python of a page, which shares its state, in small size."""
    code = "\n".join(blocks(page, "python"))
    for replacements in SMALLER.findall(page.read_text(encoding="utf-8")):
        for replacement in replacements.split("; "):
            shown, smaller = replacement.split(" -> ")
            assert shown in code, f"{name_of(page)} shows no {shown!r}"
            code = code.replace(shown, smaller)
    return code


def commands(page: Path) -> Iterator[str]:
    """Every `dkgp ...` of a page's shell blocks, those within $(...) too."""
    for block in blocks(page, "sh"):
        lines = re.sub(r"\\\n\s*", "", block)
        yield from re.findall(r"\$\(dkgp ([^)]*)\)", lines)
        yield from re.findall(r"^dkgp (.*)$", re.sub(r"\$\(.*?\)", "ID", lines), flags=re.MULTILINE)


# By program: the first page shows what the README does. What is in deploy/ starts machines.
PROGRAMS = {program(page): page for page in reversed([ROOT / "README.md", *DOCS]) if blocks(page, "python")}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's folder, with the file that the pages read, as the current one."""
    table = np.random.default_rng(0).random((200, 4))
    np.savetxt(tmp_path / "DATA.csv", table, delimiter=",", header="a,b,c,price", comments="")
    run_example(ExampleJob(str(tmp_path / "houses.csv"), samples=600), SilentReporter())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.spread(6)
@pytest.mark.parametrize("page", [page for page in PROGRAMS.values() if page.parent != ROOT], ids=name_of)
@pytest.mark.usefixtures("reader")
def test_python_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program(page), name_of(page), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.long
def test_the_readme_runs_in_a_process_of_its_own(reader: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    code = program(ROOT / "README.md")
    shown = subprocess.run([sys.executable, "-c", code], cwd=reader, env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip()


@pytest.mark.long
def test_the_commands_of_the_readme_run_and_print_the_lines_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's three commands on fewer rows: the labels of the shown lines are printed, and one answer a row."""
    monkeypatch.chdir(tmp_path)
    readme = ROOT / "README.md"
    example, fit, piped = blocks(readme, "sh")[0].splitlines()
    table, answer = blocks(readme, "text")
    lines, _, predict = piped.partition(" | ")
    given = lines.removeprefix("printf ").strip("'").replace("\\n", "\n")
    printed = []
    for line, options, text in ((example, "--samples 400", None), (fit, "--kernel rbf", None), (predict, "", given)):
        words = shlex.split(f"{line.partition('#')[0]} {options}")
        result = CliRunner().invoke(main, words[1:], input=text)
        assert result.exit_code == 0, f"{line}: {result.output}"
        printed.append(result.stdout)
    labels = [line.split("  ")[0] for line in table.splitlines()]
    assert len(labels) == 3
    assert [label for label in labels if not re.search(rf"^{label}  ", printed[1], flags=re.MULTILINE)] == []
    header, *rows = printed[2].splitlines()
    assert header == answer.splitlines()[0]
    assert len(rows) == len(answer.splitlines()) - 1 == 1
    mean, std, lower, upper, bound = map(float, rows[0].split(","))
    assert lower < mean < upper
    assert 0.0 < bound < std
    assert (tmp_path / "fit" / "report.html").exists()


def parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    """Parse a command line as the command would, without running it; click's own error where that fails."""
    context = command.make_context(name, arguments, parent=parent)
    if isinstance(command, click.Group):
        chosen, subcommand, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert subcommand is not None
        assert chosen is not None
        parse(subcommand, chosen, rest, context)


LINES = [(page, line) for page in PAGES for line in commands(page)]


def test_shell_blocks_are_found() -> None:
    assert len(LINES) > 80
    assert {"README.md", "docs/guides/service.md", "deploy/README.md"} <= {name_of(page) for page, _ in LINES}


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda value: value if isinstance(value, str) else name_of(value))
def test_commands_parse(page: Path, line: str) -> None:
    arguments = shlex.split(line.split(" > ")[0], comments=True)
    try:
        parse(main, "dkgp", arguments)
    except click.ClickException as error:
        pytest.fail(f"{name_of(page)}: dkgp {line}: {error.format_message()}")


def test_the_first_commands_on_labels_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = rng.random((150, 3))
    kinds = np.where(table[:, 0] + 0.2 * rng.random(150) > 0.5, "house", "flat")
    lines = [",".join([*map(repr, row.tolist()), kind]) for row, kind in zip(table, kinds, strict=True)]
    (tmp_path / "DATA.csv").write_text("\n".join(["a,b,c,kind", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)
    shown = blocks(ROOT / "docs" / "guides" / "classification.md", "sh")[0].splitlines()
    assert [line.split()[1] for line in shown] == ["ingest", "classify", "predict", "evaluate", "info"]
    for line in shown:
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}: {result.output}"
    assert "flat" in result.output
    assert (tmp_path / "classes.png").stat().st_size > 0


# Options of other programs.
FOREIGN = """
    --build --create-namespace --dashboard-address --detach --filename --from-literal --kustomize --me --namespace
    --no-dashboard --nthreads --output --preload --protocol --recipe --repo --rm --round --set --tls-ca-file
"""


def options(command: click.Command) -> set[str]:
    """Return the flags of a command and of all its subcommands."""
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        found = [command.get_command(context, name) for name in command.list_commands(context)]
        flags |= {flag for subcommand in found if subcommand is not None for flag in options(subcommand)}
    return flags


def test_every_option_that_a_page_names_exists() -> None:
    known = options(main) | {"--help", *FOREIGN.split()}
    for page in PAGES:
        if page.name == "FAULTS.md" or page.parent.name == "cloud":  # names of tests; other programs
            continue
        named = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", page.read_text(encoding="utf-8"))
        assert sorted(set(named) - known) == [], name_of(page)


def test_configuration_of_clusters_is_read(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs" / "guides" / "clusters.md", "yaml")
    file = tmp_path / "dask.yaml"
    file.write_text(block)
    options = configured_options({"config_file": str(file)})
    assert (options.kind, options.workers, options.worker_memory_bytes) == ("slurm", 8, 16 * 1024**3)


def test_hyperparameters_by_hand_are_read(tmp_path: Path) -> None:
    (block,) = blocks(ROOT / "docs" / "guides" / "first-model.md", "json")
    file = tmp_path / "hyper.json"
    file.write_text(block)
    assert list(read_hyperparameters(str(file)).gamma) == [0.1, 0.2, 0.05]


def test_every_command_is_listed() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    table = page.partition("\n## ")[0]
    cells = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", table, flags=re.MULTILINE)
    assert set(re.findall(r"[\w-]+", " ".join(cells))) == set(main.commands)
    benches = main.commands["bench"]
    assert isinstance(benches, click.Group)
    names = benches.list_commands(click.Context(benches))
    assert "tiles" in names
    for name in names:
        assert f"`{name}`" in table, f"bench {name}"


def test_every_exit_code_is_listed() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE) == [str(code.value) for code in ExitCode]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that a code host and MyST give to the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            destination = (page.parent / path).resolve() if path else page
            assert destination.exists(), target
            assert not anchor or anchor in anchors(destination), target


def test_readme_is_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


QUESTIONS = ("When do I need this?", "What do I run?", "What do I get?", "What can go wrong?")


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=name_of)
def test_every_guide_opens_with_the_same_four_questions(page: Path) -> None:
    title, opening, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    answers = [re.match(r"\*\*(.+?)\*\* (\S.*)", item, re.DOTALL) for item in opening.removeprefix("- ").split("\n- ")]
    assert [answer and answer[1] for answer in answers] == list(QUESTIONS)
    # An answer is some sentences; more belongs into a section.
    assert all(answer is not None and len(answer[2].split()) <= 75 for answer in answers)


def test_the_questions_repeat_the_bound_of_the_tour() -> None:
    tour, questions = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("tour.md", "faq.md"))
    worst = re.search(r"worst case ([\d.]+), root mean square [\d.]+ \(units of the targets\)", tour)
    said = re.search(r"in \[the tour\]\(tour\.md\) at most ([\d.]+), where", questions)
    assert worst is not None
    assert said is not None
    assert f"proven to be within {said[1]} of" in tour
    assert 0.0 <= float(said[1]) - float(worst[1]) < 0.01
