"""The notebooks: stored without outputs, public names only, and each runs in a kernel of its own as for a reader."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient import NotebookClient

import dkgp

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
ROOT = FOLDER.parent


@dataclass(frozen=True)
class Ran:
    """Output of a notebook.

    Attributes
    ----------
    said
        All that was printed.
    complaints
        What was written to the standard error stream.
    figures
        Number of pictures.
    line
        What a reader's next cell shows that works for a while, when it is done.
    """

    said: str
    complaints: str
    figures: int
    line: str

    def number(self, before: str, at: int = 0) -> float:
        """Return the number behind the words `before`, where they are found for the time `at`."""
        found = re.findall(re.escape(before) + r"\s*(-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?)", self.said)
        assert found, f"{before!r} was not printed: {self.said}"
        return float(found[at].replace(",", ""))


def of_quickstart(ran: Ran) -> None:
    assert ran.number("R^2 on the test rows:") > 0.95
    assert 88.0 < ran.number("within 1.96 standard deviations:") < 99.5
    rows = ran.number("form, with")
    assert f"{3 * rows // 4 + 30:.0f} samples" in ran.said
    assert ran.said.rstrip().endswith("True")


def of_gbcd(ran: Ran) -> None:
    above = {name: ran.number(name) for name in ("greedy", "cyclic", "largest gradients")}
    assert above["greedy"] < 0.9 * min(above["cyclic"], above["largest gradients"])
    assert ran.number("nearest active samples", 0) < 0.8 * ran.number("nearest active samples", 2)
    assert ran.number("surface    y    mean correlation of neighbours") > 0.3
    # Conjugate steps are, and steps as they come are not.
    assert ran.number("one round and the next interfere:") > 0.02
    assert float(ran.said.split(" at most with one")[0].split()[-1]) < 1e-9
    final = {name: float(gradient) for name, gradient in re.findall(r"^(\S+) .*max \|g\| = (\S+)$", ran.said, re.M)}
    assert max(final["GBCD"], final["dkgp's"]) <= 1e-4 < min(final["CG"], final["BCDG"])
    passes = re.search(r"largest size: BCDC (\S+), GBCD (\S+), dkgp's (\S+)", ran.said)
    assert passes is not None
    assert float(passes[2]) < 0.6 * float(passes[1])


def of_error_bars(ran: Ran) -> None:
    assert float(ran.said.split("proven to be within ")[1].split()[0]) < 1e-4
    there_is, proven = re.search(r"after 16 passes: (\S+), proven (\S+)", ran.said).groups()  # type: ignore[union-attr]
    assert float(there_is) < float(proven) < 0.5
    coverage = {row[0].strip(): float(row[1]) for row in re.findall(r"^(\D.*?)  +.* (\S+) %$", ran.said, re.M)}
    assert 91.0 < coverage["tuned"] < 98.5
    assert coverage["noise / 4"] < 80.0 < 98.0 < coverage["noise × 4"]


def of_sparse(ran: Ran) -> None:
    smooth, terrain = (float(share) for share in re.findall(r"basis samples \+?(-?\S+)% in RMSE", ran.said))
    assert abs(smooth) < 2.0 < 5.0 < terrain
    covered = dict(re.findall(r"^(exact|vfe|sr) .* (\S+)%$", ran.said, re.M))
    assert float(covered["sr"]) < 80.0 < 88.0 < min(float(covered["exact"]), float(covered["vfe"]))
    assert float(re.findall(r"as large as it takes: .* proven (\S+)", ran.said)[0]) <= 0.05


def of_kernels(ran: Ran) -> None:
    evidence = {
        name: float(value)
        for name, value in re.findall(r"^(rbf|season|changing season \+ rbf) +(-?\d\S*)", ran.said, re.M)
    }
    assert evidence["season"] < evidence["rbf"] < evidence["changing season + rbf"] - 50.0
    assert ran.number("the shortest of an idle feature is") > 1.5
    errors = [float(value) for value in re.findall(r"RMSE of the function (\S+)", ran.said)]
    assert max(errors[:2]) < 0.5 * errors[2]


def of_certified_labels(ran: Ran) -> None:
    assert ran.number("certified labels that were not the exact machine's:") == 0
    # Away from a half: far from everything, and all over the map.
    far, sure = (
        {name: float(value) for name, value in re.findall(r"(\w+) (0\.\d+)", line)}
        for line in re.findall(r"away from a half:(.*)", ran.said)
    )
    assert max(far["KernelLogisticClassifier"], far["GPClassifier"]) < 0.02
    assert sure["GPClassifier"] < 0.8 * sure["KernelLogisticClassifier"]
    rows = re.findall(r"^(\w+) +(0\.\d+) +(0\.\d+)$", ran.said, re.M)
    error = {name: float(value) for name, value, _ in rows}
    loss = {name: float(value) for name, _, value in rows}
    assert len(loss) == 5
    assert max(error.values()) < 0.2
    assert max(loss.values()) < 1.15 * loss["SVC"] < 0.5
    widths = [float(width) for width in re.findall(r"0\.\d+", ran.said.split("widest interval:")[1].split("\n")[0])]
    # A sigmoid's slope is a quarter, and decisions are within the tolerance on either side.
    assert all(width <= 0.5 * tolerance for width, tolerance in zip(widths, (1.0, 0.3, 0.03), strict=True))
    assert widths[2] < widths[0]
    assert widths[2] < 0.05
    errors = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+) +0\.", ran.said, re.M)}
    assert max(errors.values()) <= 20
    among, others = re.search(r"cases, (\d+) errors among them; (\d+) of the others", ran.said).groups()  # type: ignore[union-attr]
    assert int(among) < int(others)


def of_scaling_out(ran: Ran) -> None:
    # Of a cluster, with a worker killed, of an object store, of a job.
    assert re.findall(r"same bits: (\w+)", ran.said) == ["True"] * 4
    assert "1 worker killed" in ran.said
    assert int(re.findall(r"(\d+) tasks on 2 workers", ran.said)[0]) > 20
    assert re.search(r"s3://bucket/model.zarr: \d\d? objects", ran.said)
    assert "the job is done" in ran.said


def of_kriging(ran: Ran) -> None:
    misfit = {
        name: float(value) for name, value in re.findall(r"^(\w+) +partial sill .* misfit (\S+)$", ran.said, re.M)
    }
    assert misfit["matern32"] < min(misfit["exponential"], misfit["spherical"])
    ratios = [float(value) for value in re.findall(r"squared error / variance (\S+)", ran.said)]
    assert len(ratios) == 3
    assert 0.4 < ratios[2] < 2.5
    assert ran.number("outside of gaps") < ran.number("in gaps")
    assert 85.0 < ran.number("within 1.96 standard deviations:") <= 100.0
    assert ran.number("proven to be within") < 0.1 * ran.number("smallest standard deviation is")
    assert ran.number("each variance is known within") <= 5.0
    assert ran.number("the 16 nearest are off by") > 0.1


@dataclass(frozen=True)
class Notebook:
    """A notebook, how many pictures it draws, and what its numbers have to be."""

    name: str
    figures: int
    check: Callable[[Ran], None]


NOTEBOOKS = (
    Notebook("quickstart", 4, of_quickstart),
    Notebook("how-gbcd-works", 7, of_gbcd),
    Notebook("error-bars", 5, of_error_bars),
    Notebook("sparse-against-exact", 4, of_sparse),
    Notebook("kernels", 5, of_kernels),
    Notebook("kriging", 5, of_kriging),
    Notebook("certified-labels", 5, of_certified_labels),
    Notebook("scaling-out", 2, of_scaling_out),
)
every = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
# The others' short forms are run by `make docs`, to which an error or a word on standard error is an error, too.
first = pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(notebook, id=notebook.name, marks=() if notebook.name == "quickstart" else pytest.mark.slow)
        for notebook in NOTEBOOKS
    ],
)


WORK = """
from dkgp.commands.reporting.progress import WorkProgress
from dkgp.commands.reporting.terminal import TerminalReporter
with TerminalReporter().work("predict") as advance:
    for done in range(5):
        advance(WorkProgress("samples", done, 4, "samples"))
"""


def read(notebook: Notebook) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{notebook.name}.ipynb", as_version=4)


def code_of(document: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in document.cells if cell.cell_type == "code"]


def ran(notebook: Notebook, folder: Path, timeout: int) -> Ran:
    document, work = read(notebook), nbformat.v4.new_code_cell(WORK)
    document.cells.append(work)
    NotebookClient(document, timeout=timeout, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in document.cells[:-1] if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    (line,) = work.outputs
    streams = [output for output in outputs if output.output_type == "stream"]
    return Ran(
        "".join(output.text for output in streams if output.name == "stdout"),
        "".join(output.text for output in streams if output.name == "stderr"),
        len([output for output in outputs if "image/png" in output.get("data", {})]),
        line.data["text/plain"],
    )


def test_all_are_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(notebook.name for notebook in NOTEBOOKS)


@every
def test_it_is_stored_without_outputs(notebook: Notebook) -> None:
    document = read(notebook)
    nbformat.validate(document)
    for cell in document.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
    text = (FOLDER / f"{notebook.name}.ipynb").read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"


def public_names(package: ModuleType) -> set[str]:
    return {*package.__all__, *(dkgp._LAYERS if package is dkgp else ())}


@every
def test_it_uses_public_names_only(notebook: Notebook) -> None:
    tree = ast.parse("\n".join(code_of(read(notebook))))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not [name for name in attributes if name.startswith("_")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            own = {alias.name for alias in node.names if alias.name.startswith("dkgp")}
            assert own <= {"dkgp"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dkgp"):
            assert (node.module or "").removeprefix("dkgp.") in dkgp._LAYERS
            package = importlib.import_module(str(node.module))
            assert {alias.name for alias in node.names} <= public_names(package)
        elif isinstance(node, ast.Attribute):
            assert_is_public(node)


def assert_is_public(node: ast.Attribute) -> None:
    """`dkgp.a` and `dkgp.a.b` are names of the packages' `__all__`."""
    owner = node.value
    if isinstance(owner, ast.Name) and owner.id == "dkgp":
        assert node.attr in public_names(dkgp)
    elif isinstance(owner, ast.Attribute) and ast.unparse(owner) in {f"dkgp.{layer}" for layer in dkgp._LAYERS}:
        assert node.attr in public_names(importlib.import_module(ast.unparse(owner)))


@every
def test_its_sizes_are_in_one_cell(notebook: Notebook) -> None:
    cells = [cell for cell in read(notebook).cells if "sizes" in cell.metadata.get("tags", [])]
    assert len(cells) == 1
    assert "DKGP_NOTEBOOK_SHORT" in cells[0].source
    assert sum("SHORT = " in source for source in code_of(read(notebook))) == 1


@every
def test_it_is_linked_from_the_documentation(notebook: Notebook) -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert f"(../notebooks/{notebook.name}.ipynb)" in page
    guides = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md") if path.name != "notebooks.md"]
    assert any(f"notebooks/{notebook.name}.ipynb)" in text for text in guides)


@every
def test_its_links_lead_somewhere(notebook: Notebook) -> None:
    for cell in read(notebook).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)\s]+)\)", cell.source):
                assert target.startswith("https://") or (FOLDER / target.partition("#")[0]).exists(), target


def looked_at(notebook: Notebook, folder: Path, timeout: int) -> None:
    found = ran(notebook, folder, timeout)
    assert found.complaints == ""
    assert found.figures == notebook.figures
    # One line, written anew.
    assert found.line.startswith("predict: 100 %, 4 of 4 samples")
    notebook.check(found)


@pytest.mark.long
@first
def test_its_short_form_runs(notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("DKGP_NOTEBOOK_SHORT", "1")
    looked_at(notebook, tmp_path, timeout=240)


@pytest.mark.slow
@pytest.mark.timeout(900)
@every
def test_it_runs(notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.delenv("DKGP_NOTEBOOK_SHORT", raising=False)
    looked_at(notebook, tmp_path, timeout=300)
