"""Tables of `dkgp tune`: what was found, each hyperparameter, and how the result scores."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.tables.layout import table_of, titled
from dkgp.commands.reporting.tables.refine import refine_tables
from dkgp.models import TunedParameter


def tune_tables(document: Document) -> list[RenderableType]:
    """Return the tables that show the document of `dkgp tune`."""
    rows = [("hyperparameters", document["out"])]
    likelihood = document.get("likelihood")
    noise = f"{document['noise_variance']:.4g}"
    rows.append(("noise variance", noise) if likelihood is None else ("likelihood", likelihood))
    if "variance" in document["kernel"]:
        rows.append(("amplitude", f"{document['kernel']['variance']:.4g}"))
    subsets = document.get("subsets", 1)
    if subsets > 1:
        rows.append(("subsets", f"{subsets} of {document['subset_size']:,} samples"))
    for name, title in (
        ("log_marginal_likelihood", "log marginal likelihood" if likelihood is None else "log evidence (Laplace)"),
        ("leave_one_out_log_likelihood", "leave-one-out log likelihood"),
        ("log_prior", "log density of the priors"),
    ):
        if document.get(name) is not None:
            rows.append((title, f"{document[name]:.2f}"))
    if (sparse := document.get("sparse")) is not None:
        title = "variational bound" if document.get("objective") == "bound" else "FITC likelihood"
        rows += [(title, f"{sparse['value']:.2f}"), ("basis samples", f"{sparse['basis_size']:,}")]
    if "converged" in document:  # values to refine may have been given by hand
        rows += [
            ("converged", f"{'yes' if document['converged'] else 'no'}, {document['evaluations']} evaluations"),
            ("seconds", f"{document['seconds']:.1f}"),
        ]
    if document.get("plot") is not None:
        rows.append(("plot", document["plot"]))
    shown = [table_of("Tuned", rows)]
    if document.get("parameters"):
        shown.append(_parameters([TunedParameter.from_json(item) for item in document["parameters"]]))
    if document.get("scores"):
        shown.append(_scores(document))
    if document.get("refinement"):
        shown += refine_tables(document["refinement"])
    return shown


def _parameters(parameters: list[TunedParameter]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold", style="dim")
    for title in ("value", "length scale", ""):
        table.add_column(title, justify="right")
    for parameter in parameters:
        scale = parameter.length_scale
        table.add_row(
            # As it is: rich would take what stands in brackets for markup.
            Text(parameter.name),
            f"{parameter.value:.4g}",
            "" if scale is None else f"{scale:.4g}",
            "fixed" if parameter.fixed else "",
        )
    return titled("Hyperparameters (gamma = 1 / (2 length scale^2), standardised)", table)


def _scores(document: Document) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    of_labels = document.get("likelihood") is not None
    figures = {"rmse": "RMSE", "nlpd": "NLPD", "coverage_95": "coverage of 95 %"}
    if of_labels:
        figures = {"error_rate": "error rate", "log_loss": "log loss"}
    for title in ("scores of", *figures.values()):
        table.add_column(title, justify="left" if title == "scores of" else "right")
    for group, scores in document["scores"].items():
        what = f"{scores['folds']} folds" if group == "folds" else f"{scores['rows']:,} rows held out"
        table.add_row(what, *(f"{scores[name]:.4f}" for name in figures))
    return titled("Scores (averaged probabilities)" if of_labels else "Scores (standardised targets)", table)
