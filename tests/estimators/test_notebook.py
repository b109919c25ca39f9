"""The quickstart notebook: stored without outputs, public names only, and it runs in a kernel as for a reader."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def code_of(notebook: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_stored_without_outputs(notebook: nbformat.NotebookNode) -> None:
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


def test_it_uses_public_names_only(notebook: nbformat.NotebookNode) -> None:
    tree = ast.parse("\n".join(code_of(notebook)))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not [name for name in attributes if name.startswith("_")]
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    of_dkgp = {alias.name for node in imported for alias in node.names if "dkgp" in ast.dump(node)}
    assert of_dkgp == {"dkgp"}
    assert "GPRegressor" in attributes


@pytest.mark.slow
def test_it_runs(notebook: nbformat.NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    said = "".join(output.get("text", "") for output in outputs if output.output_type == "stream")
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) == 4
    r_squared = float(said.split("R^2 on the test rows: ")[1].split()[0])
    assert r_squared > 0.95
    coverage = float(said.split("within 1.96 standard deviations: ")[1].split()[0])
    assert 91.0 < coverage < 98.5
    assert "930 samples" in said
    assert said.rstrip().endswith("True")
