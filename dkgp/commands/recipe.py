"""Declarations of the commands, which the command line, the jobs service and batch scripts read.

`RECIPES` lists the commands. The module of a command defines the dataclass of its job, decorated with `command`, and
the function that runs the job. The fields of the job declare the options (`dkgp.options`). A module is imported at the
first use of its command, and not for the list of commands.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from dkgp.errors import StoreError
from dkgp.options import Declared, declared_options, value_at, words_of

if TYPE_CHECKING:
    from dkgp.commands.reporting.outputs import Document
    from dkgp.commands.reporting.progress import Reporter

T = TypeVar("T")


@dataclass(frozen=True)
class Declaration:
    """The declaration of a command, beside the options of its job; see `command`."""

    details: str | Callable[[], str]
    examples: tuple[str, ...]
    must_converge: bool
    goes_on: bool


def command(
    details: str | Callable[[], str], *examples: str, must_converge: bool = False, goes_on: bool = False
) -> Callable[[type[T]], type[T]]:
    """Return a decorator that declares a command on the dataclass of its job.

    Parameters
    ----------
    details
        The help after its first sentence, which is the recipe's summary; a function if it is known only at run time.
    examples
        Command lines.
    must_converge
        Whether a document with `converged` false means exit code 4.
    goes_on
        Whether `--resume` continues from a checkpoint instead of starting over.
    """

    def decorate(kind: type[T]) -> type[T]:
        setattr(kind, _DECLARATION, Declaration(details, examples, must_converge, goes_on))
        return kind

    return decorate


_DECLARATION = "__command__"


@dataclass(frozen=True)
class Recipe:
    """A command NAME. Its module defines the dataclass `NameJob`, and runs such a job by `NameRun` or by `run_name`.

    `NameRun` is a class (`dkgp.commands.run.Run`), `run_name` a function. The module may also define `check_name`,
    `finished_name` and `tables_name`; see the methods that call them. The tables of dkgp's first commands are in
    `dkgp.commands.reporting.tables`.

    The recipe "krige fit" is the command `fit` of the group `krige`; its names are `KrigeFitJob` and `KrigeFitRun`.
    """

    name: str
    summary: str  # the first sentence of the help, for the list of commands
    module: str = ""  # `dkgp.commands.NAME` by default, and the group's module for a command of a group
    job: str = ""  # the module of the job and of `check_name`, if it is another one: help then imports less
    as_job: bool = False  # the jobs service and `dkgp submit` run it

    @property
    def kind_name(self) -> str:
        """Name of the dataclass of the job."""
        return "".join(word.capitalize() for word in self._words) + "Job"

    @property
    def kind(self) -> type[Any]:
        """The dataclass of the job."""
        kind: type[Any] = getattr(self._imported(self.job), self.kind_name)
        return kind

    @property
    def declaration(self) -> Declaration:
        """The declaration of the command on its job."""
        declaration: Declaration = getattr(self.kind, _DECLARATION)
        return declaration

    @property
    def help(self) -> str:
        """The whole help."""
        details = self.declaration.details
        return f"{self.summary}\n\n{inspect.cleandoc(details if isinstance(details, str) else details())}"

    def declared(self) -> dict[str, Declared]:
        """Return all options, by name."""
        return declared_options(self.kind)

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Flags of all options, and names of arguments as help shows them, by the path of their fields with dots."""
        return {
            ".".join(path): (option.metavar or name.upper(),) if option.argument else option.flags
            for name, (option, paths) in ((name, (each.option, each.paths)) for name, each in self.declared().items())
            for path in paths
        }

    @property
    def on_cluster(self) -> bool:
        """True if the command has the cluster options."""
        return any(path[0] == "cluster" for each in self.declared().values() for path in each.paths)

    @property
    def resumes(self) -> bool:
        """True if the command has `--resume`."""
        return any(field.name == "resume" for field in fields(self.kind))

    def check(self, job: Any) -> None:
        """Refuse contradictory options, as far as possible without data; `UsageError` or `InputError`."""
        check = getattr(self._imported(self.job), f"check_{self._function}", None)
        if check is not None:
            check(job)
        elif hasattr(job, "check"):
            job.check()

    def run(self, job: Any, reporter: Reporter) -> Document:
        """Run a job; raises the errors of its run function.

        A job with `check_first` refuses mistakes by it, before the libraries of the work are imported. So do options
        that name missing files.
        """
        self.check(job)
        self._refuse_missing(job)
        if hasattr(job, "check_first"):
            job.check_first()
        module = self._imported()
        function = getattr(module, f"run_{self._function}", None)
        document: Document = (
            self._run_class(module)(job, reporter).run() if function is None else function(job, reporter)
        )
        return document

    def _refuse_missing(self, job: Any) -> None:
        """Raise `InputError` if a table or store that an option must name is missing on this machine."""
        from dkgp.data.remote.storage import exists, is_local, normalise_url

        for each in self.declared().values():
            kind = each.option.reads
            place = value_at(job, each.paths[0]) if kind else None
            if place is None or not is_local(place):
                continue
            if kind == "table":
                from dkgp.data.sources.formats import expand_locations

                expand_locations(place)
            elif not exists(place):
                raise StoreError(f"There is no {kind} store at '{normalise_url(place)}'. Check the path.")

    @property
    def layout(self) -> Callable[[Document], list[Any]] | None:
        """The function that returns a document of the command as tables; None if `commands.reporting` has it."""
        layout: Callable[[Document], list[Any]] | None = getattr(self._imported(), f"tables_{self._function}", None)
        return layout

    def finished(self, job: Any, reporter: Reporter) -> Document | None:
        """Return the record of an earlier run that finished this job; None if there is none."""
        module = self._imported()
        finished = getattr(module, f"finished_{self._function}", None)
        finished = finished or getattr(self._run_class(module), "earlier", None)
        document: Document | None = None if finished is None else finished(job, reporter)
        return document

    def _run_class(self, module: Any) -> Any:
        """Return the class of the command's runs; None if its module has a function instead."""
        return getattr(module, f"{self.kind_name.removesuffix('Job')}Run", None)

    @property
    def _words(self) -> list[str]:
        return self.name.replace("-", " ").split()

    @property
    def _function(self) -> str:
        return "_".join(self._words)

    def _imported(self, module: str = "") -> Any:
        return importlib.import_module(
            module or self.module or f"dkgp.commands.{self.name.split()[0].replace('-', '_')}"
        )


# The summaries of groups of commands, by the groups' names.
GROUPS: dict[str, str] = {
    "krige": "Interpolate scattered measurements by kriging: variograms, maps and simulations.",
}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "train",
            "Train an exact Gaussian process on the store DATASET.",
            module="dkgp.commands.tuned",
            job="dkgp.commands.train",
            as_job=True,
        ),
        Recipe(
            "sparse",
            "Train a sparse Gaussian process on the store DATASET.",
            as_job=True,
        ),
        Recipe(
            "classify",
            "Train a classifier on the labels of the store DATASET.",
            module="dkgp.commands.classifiers",
            job="dkgp.commands.classify",
            as_job=True,
        ),
        Recipe(
            "pursue",
            "Fit a linear model with few features to the store DATASET.",
        ),
        Recipe(
            "tune",
            "Tune the hyperparameters for the store DATASET by maximum likelihood.",
            module="dkgp.commands.searches",
            job="dkgp.commands.tune",
            as_job=True,
        ),
        Recipe(
            "predict",
            "Predict means, and optionally variances, at the samples of the store DATASET.",
            module="dkgp.commands.predict.run",
            job="dkgp.commands.predict.job",
            as_job=True,
        ),
        Recipe(
            "evaluate",
            "Compare the predictions in PREDICTION with the targets of the store DATASET.",
            module="dkgp.commands.evaluation",
            job="dkgp.commands.evaluate",
            as_job=True,
        ),
        Recipe(
            "export",
            "Write the predictions in PREDICTION to a table OUT.",
            module="dkgp.commands.predict.run",
            job="dkgp.commands.predict.job",
        ),
        Recipe(
            "plan",
            "Estimate time and memory of training on the store DATASET.",
            module="dkgp.plan.plan",
        ),
        Recipe(
            "demo",
            "Run all steps once on generated data, from data to predictions.",
            module="dkgp.commands.chained",
        ),
        Recipe("example", "Write a table of invented houses to OUT, to try dkgp."),
        Recipe(
            "fit",
            "Fit a model to the table SOURCES, test it, and write a report.",
            module="dkgp.fit.run",
            job="dkgp.fit.job",
            as_job=True,
        ),
        Recipe(
            "audit",
            "Prove how far the predictions in TABLE are from the exact ones.",
            module="dkgp.kriging.commands.audit",
            job="dkgp.kriging.commands.audit_job",
        ),
        Recipe(
            "krige variogram",
            "Estimate the variogram of the samples in SOURCE and fit models.",
            module="dkgp.kriging.commands.krige",
            job="dkgp.kriging.commands.jobs",
        ),
        Recipe(
            "krige fit",
            "Fit a kriged field to the samples in SOURCE.",
            module="dkgp.kriging.commands.krige",
            job="dkgp.kriging.commands.jobs",
            as_job=True,
        ),
        Recipe(
            "krige map",
            "Krige the samples in SOURCE, and write a map and a report.",
            module="dkgp.kriging.commands.whole",
            job="dkgp.kriging.commands.jobs",
            as_job=True,
        ),
        Recipe(
            "krige grid",
            "Make a map of the kriged field MODEL.",
            module="dkgp.kriging.commands.krige",
            job="dkgp.kriging.commands.jobs",
            as_job=True,
        ),
        Recipe(
            "krige blocks",
            "Predict averages of the kriged field MODEL over areas.",
            module="dkgp.kriging.commands.further",
            job="dkgp.kriging.commands.jobs",
            as_job=True,
        ),
        Recipe(
            "krige simulate",
            "Simulate fields conditional on the samples of MODEL.",
            module="dkgp.kriging.commands.further",
            job="dkgp.kriging.commands.jobs",
            as_job=True,
        ),
        Recipe(
            "krige check",
            "Cross-validate the kriged field MODEL.",
            module="dkgp.kriging.commands.check",
            job="dkgp.kriging.commands.jobs",
        ),
        Recipe("ingest", "Read the table SOURCES into the dataset store OUT."),
        Recipe(
            "info",
            "Describe the store or file at LOCATION, or this installation.",
        ),
        Recipe("warm-up", "Compile dkgp's code in advance, for a faster first run."),
    )
}


def recipe_of(job: Any) -> Recipe:
    """Return the recipe that runs a job."""
    return next(recipe for recipe in RECIPES.values() if recipe.kind_name == type(job).__name__)


def command_words(job: Any, without: Collection[str] = ()) -> list[str]:
    """Return the words of the command line that runs a job, without the options in `without`."""
    return ["dkgp", *recipe_of(job).name.split(), *words_of(job, without)]


def recipe_called(words: Sequence[str]) -> Recipe | None:
    """Return the recipe that a command line calls, given its words without `dkgp`; None if there is none."""
    return RECIPES.get(" ".join(words[:2])) or RECIPES.get(words[0])
