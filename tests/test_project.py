"""The project's own promises: versions agree, layers hold, every core dependency is pinned, files stay readable."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp  # import-linter's own
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import dkgp
from tests import wording
from tests.conftest import FIRST

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dkgp"
# Of packages that are imported under another name than they are installed by.
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
BENCHMARKS = ROOT / "benchmarks"
PACKAGES = (PACKAGE, BENCHMARKS / "dkgp_benchmarks")
LONGEST_FILE_LINES = 900
MOST_MODULES = 30
SPINE_LINES, MOST_PARAMETERS = 4000, 8
DASK_COLLECTIONS = {"array", "bag", "dataframe", "delayed"}


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def benchmarks() -> dict[str, Any]:
    """Metadata of the distribution in benchmarks/."""
    project: dict[str, Any] = tomllib.loads((BENCHMARKS / "pyproject.toml").read_text())["project"]
    return project


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@dataclass
class Told:
    """Facts about a file's syntax tree, which is not kept: the trees of all files are a million objects."""

    imports: list[str] = field(default_factory=list)  # dotted names, whether of modules or of names from them
    packages: set[str] = field(default_factory=set)  # imported at the top of the file
    functions: list[tuple[str, int]] = field(default_factory=list)  # with how many parameters each takes
    docstrings: list[str] = field(default_factory=list)  # their first lines


@cache
def told(path: Path) -> Told:
    """Read a file, once."""
    result, tree = Told(), ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.Import):
            result.packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            result.packages.add((node.module or "").split(".")[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            result.docstrings += text.splitlines()[:1] if text else []
        if isinstance(node, ast.Import):
            result.imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            result.imports += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            result.functions.append((node.name, len(parameters(node))))
    return result


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=folder,
        # The copies in `folder` must win over the packages that are installed.
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(folder / "benchmarks")]), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    # Some versions colour their output even where nobody can see it.
    result.stdout = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
    return result


def test_version_is_the_same_everywhere(pyproject: dict[str, Any], benchmarks: dict[str, Any]) -> None:
    assert dkgp.__version__ == pyproject["project"]["version"] == benchmarks["version"]
    (version,) = (text.partition("==")[2] for text in benchmarks["dependencies"] if text.startswith("dkgp"))
    assert version == dkgp.__version__


def test_both_distributions_have_the_licence(pyproject: dict[str, Any], benchmarks: dict[str, Any]) -> None:
    assert (BENCHMARKS / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert [benchmarks[name] for name in ("license", "license-files")] == ["BSD-3-Clause", ["LICENSE"]]
    assert "/benchmarks" in pyproject["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


def test_import_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


LAYERS = "A layer imports only the layers below it"
STORES = "Only dkgp.data imports zarr and xarray"
CLUSTER = "Only dkgp.cluster imports distributed"
DASK = "Only dkgp.data, dkgp.estimators and dkgp.cluster import dask"
WEB = "Only dkgp.service imports web code"
TERMINAL = "Only dkgp.cli and what commands report with talk to a terminal"
ROOMS_OF_KERNELS = "Kernels are values that tiles are made of, and know none"
ROOMS_OF_OPERATORS = "Cells or a low-rank factor know blocked products, which know neither"
ROOMS_OF_SOLVERS = "Solvers share what lies below them, and the driver knows none"
ABOVE = "Benchmarks know dkgp, which knows none of them"
ROOMS_OF_BENCHMARKS = "The larger benchmarks share what lies below them"
ROOMS_OF_SERVICE = "What answers, what runs and what asks meet in the queue alone"


# (module, statement, the one contract that it breaks).
INTRUDERS = [
    ("solvers/smo", "import zarr", STORES),
    ("operators/base", "from distributed import Client", CLUSTER),
    ("models/exact", "import dask.array", DASK),
    ("cli/group", "import uvicorn", WEB),
    ("solvers/auto", "from rich.progress import Progress", TERMINAL),
    ("data/new", "", "Sources fill stores, stores lie on remote or local disks"),
    ("operators/dense", "import dkgp.operators.cells.plan", ROOMS_OF_OPERATORS),
    ("service/roots", "import dkgp.service.web.app", ROOMS_OF_SERVICE),
    ("kernels/stationary", "def later():\n    import dkgp.kernels.tiles.stages", ROOMS_OF_KERNELS),
    ("solvers/driver", "import dkgp.solvers.smo", ROOMS_OF_SOLVERS),
    ("cli/job_commands", "def later():\n    import dkgp.bench.tiles", "A plan is made without a benchmark"),
    ("bench/tiles", "def later():\n    import dkgp_benchmarks.library", ABOVE),
    ("benchmarks/dkgp_benchmarks/library", "import dkgp_benchmarks.solvers", ROOMS_OF_BENCHMARKS),
]
# (module, statement, what the report says of it): an import upwards takes the layer's own rooms with it.
UPWARDS = [
    ("data/types", "import dkgp.kernels.base", "dkgp.data is not allowed to import dkgp.kernels:"),
    ("estimators/outputs", "import xarray", "dkgp.estimators is not allowed to import xarray:"),
    (
        "kernels/base",
        "def later():\n    import dkgp.data.remote.storage",
        "dkgp.kernels is not allowed to import dkgp.data:",
    ),
    ("utilities", "", "- dkgp.utilities\n"),
    ("errors", "import dkgp.cli", "dkgp.errors is not allowed to import dkgp.cli:"),
    ("operators/base", "from dkgp.solvers import driver", "dkgp.operators is not allowed to import dkgp.solvers:"),
]


def report_with(intruders: list[tuple[str, str, str]], folder: Path) -> str:
    """Report of `lint-imports` on a copy of the packages with further imports."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in PACKAGES:
        shutil.copytree(package, folder / package.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    for module, statement, _ in intruders:
        # A file that is there: where rooms are listed to the last, a new one would break that contract as well.
        package = folder if module.startswith("benchmarks/") else folder / "dkgp"
        with (package / f"{module}.py").open("a") as file:
            file.write(f"\n{statement}\n")
    result = lint_imports(folder)
    assert result.returncode != 0, result.stdout + result.stderr
    return result.stdout


def test_import_contracts_bite_each(tmp_path: Path) -> None:
    report = report_with(INTRUDERS, tmp_path)
    assert set(re.findall(r"(.*\S) +BROKEN", report)) == {contract for _, _, contract in INTRUDERS}, report


def test_layers_are_told_from_every_side(tmp_path: Path) -> None:
    report = report_with(UPWARDS, tmp_path)
    assert {LAYERS, STORES} <= set(re.findall(r"(.*\S) +BROKEN", report))
    assert [said for _, _, said in UPWARDS if said not in report] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    # Imports within functions count too.
    graph = grimp.build_graph(*(package.name for package in PACKAGES), cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) - {module} for module in graph.modules}
    # For type checkers alone: `dkgp.GPRegressor` is loaded on first use, while layers below read `dkgp.__version__`.
    imports["dkgp"] -= {"dkgp.estimators"}
    assert "dkgp.kernels.base" in imports["dkgp.kernels.composite"]
    TopologicalSorter(imports).prepare()  # a CycleError names the modules


def test_a_folder_is_seen_at_a_glance() -> None:
    below = (path for package in PACKAGES for path in package.rglob("*"))
    folders = [*PACKAGES, *(path for path in below if path.is_dir() and path.name != "__pycache__")]
    counts = {str(path): sum(1 for module in path.glob("*.py") if module.name != "__init__.py") for path in folders}
    assert {path: count for path, count in counts.items() if count > MOST_MODULES} == {}


def test_collections_of_dask_stay_in_data_and_estimators() -> None:
    for path in sources(PACKAGE):
        layer = path.relative_to(PACKAGE).parts[0]
        if layer in {"data", "estimators"}:
            continue
        used = {name.split(".")[1] for name in told(path).imports if name.startswith("dask.")}
        assert not used & DASK_COLLECTIONS, f"{path} imports dask collections: {sorted(used & DASK_COLLECTIONS)}"


def test_layers_read_only_the_version_of_the_top_level() -> None:
    # The import contract lets every layer import `dkgp` itself, for its version; more would be a way around the layers.
    layers = {path.name.removesuffix(".py") for path in PACKAGE.iterdir()} | {"__version__"}
    for path in sources(PACKAGE):
        names = {name.split(".")[1] for name in told(path).imports if name.startswith("dkgp.")}
        assert path.parent == PACKAGE or names <= layers, f"{path} imports {sorted(names - layers)} from dkgp itself"


def test_files_fit_in_one_reading() -> None:
    for path in (path for folder in (*PACKAGES, ROOT / "tests", BENCHMARKS / "tests") for path in sources(folder)):
        n_lines = len(path.read_text().splitlines())
        assert n_lines <= LONGEST_FILE_LINES, f"{path} has {n_lines} lines; split it where its story changes"


def spine() -> list[str]:
    """The files of CONTRIBUTING's spine, relative to the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The spine")[2].partition("## Recipes")[0]
    return re.findall(r"^\| `dkgp/([\w/.]+)` \|", text, flags=re.MULTILINE)


def test_the_spine_is_read_in_an_evening() -> None:
    lengths = {name: len((PACKAGE / name).read_text().splitlines()) for name in spine()}
    assert len(lengths) == 12
    assert sum(lengths.values()) <= SPINE_LINES, lengths
    told = (ROOT / "docs" / "how-it-works.md").read_text()
    places = [told.find(f"`{name}`") for name in spine()]
    assert places == sorted(places)
    assert min(places) > 0


def test_files_that_are_run_first_are_there() -> None:
    assert [path for path in FIRST if not (ROOT / path).exists()] == []


def test_every_room_says_where_it_hangs() -> None:
    rooms = [path for path in sources(PACKAGE) if path.name == "__init__.py" and path.parent != PACKAGE]
    hangs = {path: re.findall(r"^# Hangs on dkgp/(.+)\.$", path.read_text(), flags=re.MULTILINE) for path in rooms}
    assert not {str(path.relative_to(PACKAGE)): names for path, names in hangs.items() if len(names) != 1}
    assert {name for names in hangs.values() for name in names} <= set(spine())


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


# Public functions whose keywords are their users', and the compiled loops, which take plain arrays.
LONG = {"ingest", "write_rbf_mixture", "write_friedman1", "dataset_from_arrays", "choose_solver_for"}
LONG |= {"train", "update", "empirical_variogram", "compare_variograms", "grid", "simulate", "read_samples"}
COMPILED = (
    "kernels/tiles/",
    "kernels/small_products.py",
    "operators/cells/",
    "operators/cross/candidates.py",
)


def test_functions_take_few_parameters() -> None:
    long: set[str] = set()
    for path in sources(PACKAGE):
        place = str(path.relative_to(PACKAGE))
        if not place.startswith(COMPILED):
            long |= {name for name, count in told(path).functions if count > MOST_PARAMETERS}
    assert long <= LONG


@pytest.mark.long
def test_messages_need_no_second_reading() -> None:
    """The words of `wording.MESSAGE` are in no message, help or label."""
    assert wording.messages() == []


def test_dialect_in_messages_is_found() -> None:
    old = (
        "columns with something to see to",
        "Taken is the first that fits of",
        "the least of 1 kernels",
        "measuring this machine, to foresee ways to a model",
        "a loss has to be said",
        "one that waits or runs is cancelled",
        "Look at so many of the pool",
        "check what they are allowed",
        "a basis of 501 samples was asked for; there are 500",
        "--variance-rank: of use with exact models only",
        "these are no figures of a machine; measure them anew",
        "log loss (nats a sample)",
        "expected one row a target",
        "as in the paper; but for the block size",
        "only one that is done can be resumed",
        "the queue could not be looked after",
    )
    for text in old:
        assert [line for line, _ in wording.messages_in(f"f({text!r})")] == [1], text
    # A docstring has rules of its own, and a word alone is a name.
    assert list(wording.messages_in('"""Return what is left."""\nf("what")')) == []


def test_indirect_words_only_become_fewer() -> None:
    """Each room's count lies between its limit and `wording.SLACK` below it."""
    counts, limits, places = wording.counts(), wording.limits(), wording.places()
    above = {room for room, count in counts.items() if count > limits[room]}
    assert not above, "name these things instead:\n" + "\n".join(line for room in above for line in places[room])
    loose = {room: (counts[room], limit) for room, limit in limits.items() if limit > counts[room] + wording.SLACK}
    assert not loose, f"fewer indirect words than the limits allow: run `python -m tests.wording --write` ({loose})"


def test_indirect_words_are_counted_in_comments_and_docstrings() -> None:
    module = '"""What a module holds."""\n# Rows, of which\nvalue = "what" # whatever comes, and what\n'
    function = 'def f():\n    """The same."""\n'
    assert [number for number, _ in wording.places_in(module + function)] == [2, 3, 3, 1, 5]
    assert list(wording.places_in('"""Rows of a file, whatsoever."""\n')) == []


def test_docstrings_of_tests_and_benchmarks_name_their_subject() -> None:
    """dkgp's are counted by room; the other folders have none that open with a question word, "Of" or "The same"."""
    paths = [path for folder in ("tests", "benchmarks", "docs") for path in sources(ROOT / folder)]
    assert paths
    assert [f"{path}: {line}" for path in paths for line in told(path).docstrings if wording.OPENING.match(line)] == []


def test_every_dependency_is_pinned_to_an_admissible_version(
    pyproject: dict[str, Any], benchmarks: dict[str, Any]
) -> None:
    pinned: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pinned[canonicalize_name(name)] = Version(version)
    extras = pyproject["project"]["optional-dependencies"].values()
    # The benchmarks' peers are raced, not tested with, and bring gigabytes.
    core = [*pyproject["project"]["dependencies"], *benchmarks["dependencies"]]
    requirements = [Requirement(text) for text in sum(extras, core)]
    assert len(requirements) > 13
    for requirement in requirements:
        if requirement.name != "dkgp":
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"constraints.txt does not pin {requirement.name}; run make lock"
            assert version in requirement.specifier, f"constraints.txt pins {requirement.name} {version}; run make lock"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_core_imports_are_declared(pyproject: dict[str, Any], benchmarks: dict[str, Any], package: Path) -> None:
    # Imported at the top of a file, a package must be a core dependency: an extra may be missing.
    project = pyproject["project"] if package == PACKAGE else benchmarks
    declared = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    if package == PACKAGE:
        # Brought by a core dependency that cannot work without it: numba.
        declared |= {"llvmlite"}
    for path in sources(package):
        for name in told(path).packages - sys.stdlib_module_names - {package.name}:
            distribution = canonicalize_name(DISTRIBUTIONS.get(name, name))
            assert distribution in declared, f"{path} imports {name}, which is no core dependency"


def test_continuous_integration_runs_every_check() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    commands = [line.split() for line in script.read_text().splitlines() if line.startswith("make ")]
    wanted = ["lint", "types", "docs", "test-portable", "test", "test-long"]
    assert [command for line in commands for command in line[1:]] == wanted
    assert ["make", "test"] in commands  # the README's own command


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
class TestMake:
    @staticmethod
    def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        # Without the flags of the `make test` that may be running this very test.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"
        }
        command = ["make", "--no-print-directory", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env={**inherited, **environment}, capture_output=True, text=True, check=False
        )

    def test_help_is_the_default_and_lists_the_targets(self) -> None:
        listed = self.make().stdout
        for target in (
            "demo",
            "test",
            "test-portable",
            "test-long",
            "test-faults",
            "test-slow",
            "lint",
            "types",
            "docs",
            "bench",
            "mutants",
            "lock",
            "clean",
        ):
            assert re.search(rf"^  {target} +\S", listed, flags=re.MULTILINE), f"{target} is missing:\n{listed}"

    def test_tests_leave_out_the_slow_ones_and_faults(self, tmp_path: Path) -> None:
        commands = self.make("-n", "test", f"VENV={tmp_path / 'venv'}").stdout
        assert '-m pytest -m "not slow and not faults and not portable and not long"' in commands
        assert commands.index("-m venv") < commands.index("/dkgp warm-up\n") < commands.index("-m pytest")
        assert "-e '.[dev]' -e ./benchmarks" in commands
        rest = self.make("-n", "test-long", f"VENV={tmp_path / 'venv'}").stdout
        assert '-m pytest -m "long and not slow and not faults and not portable"' in rest

    def test_unfit_interpreter_is_named(self, tmp_path: Path) -> None:
        old = tmp_path / "python3.9"
        old.write_text("#!/bin/sh\nexit 1\n")
        old.chmod(0o755)
        result = self.make("install", f"VENV={tmp_path / 'venv'}", f"PYTHON={old}")
        assert result.returncode != 0
        assert f"dkgp needs Python >= 3.11 with its venv module; '{old}' is none." in result.stderr
        assert not (tmp_path / "venv").exists()


def test_a_solver_stands_without_stores() -> None:
    """Whoever reads or imports block coordinate descent meets at most 110 modules, none of them of stores or tables."""
    script = "import sys, dkgp.solvers.block_descent.gbcd; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert sum(name.split(".")[0] == "dkgp" for name in loaded) <= 110
    assert not {"zarr", "xarray", "pandas", "dask", "distributed"} & set(loaded)
