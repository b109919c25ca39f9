"""From an estimator's parameters to arguments of the layers below: hyperparameters, solver, stopping rule, workers."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np

from dkgp.cluster import BlockExecutor, ClusterOptions, open_executor
from dkgp.cluster.client_executor import (
    client_around,
    compare_versions,
    fetch_versions,
    is_in_process,
    open_client_executor,
)
from dkgp.cluster.connect import SMALL_PROBLEM_SAMPLES
from dkgp.data import Dataset
from dkgp.data.remote.addresses import is_local
from dkgp.errors import ClusterError, InputError
from dkgp.kernels import Kernel, fold_white, kernel_from_json, parse_kernel
from dkgp.models import Hyperparameters
from dkgp.models.problem import Problem
from dkgp.models.solver_choice import choose_solver_for
from dkgp.models.tuning.objectives import ObjectiveName
from dkgp.operators.product_error import EVERY_ENTRY, ProductError
from dkgp.solvers import GradientInfNorm, MaxPasses, Method, Solver, StoppingRule
from dkgp.solvers.registry import AUTO, build_solver, products_conflict, solver_names

OBJECTIVES: dict[str, ObjectiveName] = {"marginal_likelihood": "likelihood", "loo": "loo"}
# Noise of kernels that are not tuned, where none is set: a standard deviation of a tenth of the targets'.
UNTUNED_NOISE_VARIANCE = 0.01
# Parameters that mean nothing in another process, and those that are written in their own way.
_ELSEWHERE, _OWN_WAY = ("client", "store"), ("kernel", "random_state")
_JSON_TYPES = (bool, int, float, str, dict)


def hyperparameters_for(
    kernel: str | Kernel | Hyperparameters,
    dataset: Dataset,
    *,
    noise_variance: float | None,
    optimizer: str | None,
    tune: Callable[[Kernel | None, dict[str, float] | None], Hyperparameters],
) -> Hyperparameters:
    """The user's hyperparameters, or those that `tune` finds for a kernel (None for "rbf") and fixed values.

    Raises `InputError`: an expression that cannot be read, or a kernel without a noise variance.
    """
    names = dataset.feature_names
    if isinstance(kernel, Hyperparameters):
        kernel.check_features(dataset.n_features, names if kernel.feature_names is not None else None)
        return (
            kernel
            if noise_variance is None
            else replace(kernel, noise_variance=noise_variance, noise_model=None, student_t=None)
        )
    if isinstance(kernel, Kernel):
        without_white, noise = fold_white(kernel, noise_variance or 0.0)
        if noise <= 0.0:
            raise InputError(
                "a kernel that is given needs a noise variance: set noise_variance=, add white noise to it, as in "
                "kernel + White(0.01), or give the kernel as text to have all of it tuned"
            )
        return Hyperparameters(without_white, noise)
    parsed = parse_kernel(kernel, dataset.n_features, names)
    if optimizer is None:
        without_white, noise = fold_white(parsed, noise_variance or 0.0)
        return Hyperparameters(without_white, noise if noise > 0.0 else UNTUNED_NOISE_VARIANCE, feature_names=names)
    fixed = None if noise_variance is None else {"noise_variance": noise_variance}
    return tune(None if kernel.strip() == "rbf" else parsed, fixed)


def shortfall_of_tuning(hyperparameters: Hyperparameters) -> str | None:
    """Return the warning if tuning did not converge, or was stopped by a bound; None if it converged."""
    if hyperparameters.converged is not False:
        return None
    from dkgp.models.tuning.search import HOLD_NOISE

    held = {parameter.name for parameter in hyperparameters.parameters or () if parameter.pressed}
    warnings = hyperparameters.warnings
    if "noise_variance" in held:
        warnings = tuple(text.replace(HOLD_NOISE, "Set it with noise_variance=1e-5") for text in warnings)
    return "; ".join(["not converged", *warnings])


def checked_solver(solver: object, product_error: ProductError = EVERY_ENTRY) -> Solver | str:
    """Return the solver, or its name; `InputError` for anything else, and for one that takes no bound of products."""
    known = isinstance(solver, str) and solver in (AUTO, *solver_names())
    if not (known or isinstance(solver, Method)):
        names = ", ".join(f'"{name}"' for name in (AUTO, *solver_names()))
        raise InputError(
            f"solver= takes one of {names}, or one of dkgp.solvers, such as ConjugateGradient(); got {solver!r}"
        )
    checked = cast("Solver | str", solver)
    name = checked if isinstance(checked, str) else checked.name
    if (conflict := products_conflict(product_error, name)) is not None:
        raise InputError(conflict)
    return checked


def solver_for(
    solver: object, problem: Problem, tolerance: float, seed: int, *, product_error: ProductError = EVERY_ENTRY
) -> tuple[Solver, float | None]:
    """Return the solver to train with, and a forecast of its products, if there is one.

    "auto" stands for the solver that the sizes and a probe of the problem suggest, with products of the allowed error.
    """
    checked = checked_solver(solver)
    if not isinstance(checked, str):
        return checked, None
    if checked != AUTO:
        return build_solver(checked, seed=seed), None
    choice = choose_solver_for(problem, tolerance=tolerance, product_error=product_error, seed=seed)
    return build_solver(choice.solver, choice.options, precision=choice.precision, seed=seed), choice.products


def solver_for_update(solver: object) -> Solver | None:
    """The solver of an update: the user's; None for greedy block descent, which warm starts best."""
    checked = checked_solver(solver)
    if not isinstance(checked, str):
        return checked
    return None if checked in (AUTO, "gbcd") else build_solver(checked)


def stopping_of(tolerance: float, max_passes: float | None) -> StoppingRule:
    """Return the stopping rule; `InputError` for a limit that is not positive."""
    rule: StoppingRule = GradientInfNorm(tolerance)
    return rule if max_passes is None else rule | MaxPasses(max_passes)


@contextmanager
def executor_for(client: Any, samples: Any, *, ambient: bool = True) -> Iterator[BlockExecutor]:
    """Run rounds for samples, an object with `n_samples`, on the client, which stays open.

    Without one on the client that is around, if it is of use (`ambient_client_for`) and `ambient` allows it; else on
    threads, or a cluster in this process, as suits so many samples.
    """
    if client is None and ambient:
        client = ambient_client_for(samples)
    if client is not None:
        with open_client_executor(client) as executor:
            yield executor
    else:
        with open_executor(ClusterOptions(), samples.n_samples) as executor:
            yield executor


def about_fit(estimator: Any, dataset: Dataset, hyperparameters: Hyperparameters, *, several: bool) -> dict[str, Any]:
    """The description of an estimator that its model keeps, in JSON: enough to make the estimator again."""
    return {
        "several_targets": several,
        "raw_feature_names": list(dataset.raw_feature_names),
        "has_names": hasattr(estimator, "feature_names_in_"),
        "hyperparameters": hyperparameters.to_json(),
        "settings": saved_settings({name: getattr(estimator, name) for name in parameter_names(type(estimator))}),
    }


def parameter_names(kind: Any) -> list[str]:
    """Return the names of an estimator's parameters, sorted as those of `get_params`, which reads the signature."""
    return sorted(field.name for field in fields(kind) if field.init)


def saved_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return an estimator's parameters as JSON, without those that mean nothing elsewhere."""
    saved = {name: value for name, value in parameters.items() if name not in (*_ELSEWHERE, *_OWN_WAY)}
    kernel, state = parameters["kernel"], parameters["random_state"]
    if isinstance(kernel, Hyperparameters):
        saved["kernel"] = {"hyperparameters": kernel.to_json()}
    else:
        saved["kernel"] = kernel.to_json() if isinstance(kernel, Kernel) else kernel
    saved["random_state"] = state
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in saved.items()}
    return {name: value for name, value in plain.items() if value is None or isinstance(value, _JSON_TYPES)}


def settings_of(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return an estimator's parameters from `saved_settings`."""
    settings = dict(saved)
    if isinstance(settings["kernel"], Mapping):
        inner = settings["kernel"].get("hyperparameters")
        settings["kernel"] = kernel_from_json(settings["kernel"]) if inner is None else Hyperparameters.from_json(inner)
    return settings


logger = logging.getLogger("dkgp.estimators")

# Clients that a message was logged about, by the kind of the message.
_LOGGED: dict[str, weakref.WeakSet[Any]] = {}
_KEEP = "Give `client=` to decide, or set dask's `scheduler` configuration, as in dask.config.set(scheduler='threads')"


def ambient_client(n_samples: int) -> Any:
    """Return the program's default client if it helps with so many samples; None otherwise.

    It does not help if a round is shorter than the scheduler's round trip, within a task, which would wait for the
    worker that it occupies, or if dask's `scheduler` configuration names another scheduler. Workers without dkgp, or
    with another version, cannot be used; the log says so once. It also says once that a client is used.
    """
    if n_samples <= SMALL_PROBLEM_SAMPLES:
        return None
    client: Any = client_around()
    if client is None or not (is_in_process(client) or _is_fit(client)):
        return None
    address: str = client.scheduler.address
    _log_once(
        client, "used", logging.INFO, f"using the dask client that is around, of the scheduler at {address}. {_KEEP}"
    )
    return client


def ambient_client_for(dataset: Any) -> Any:
    """Return `ambient_client` if its workers can read the training set, a `Dataset` or an object with one."""
    client = ambient_client(dataset.n_samples)
    if client is None or is_in_process(client):
        return client
    stored = getattr(dataset, "dataset", dataset)
    if not (isinstance(stored, Dataset) and stored.is_stored):
        return None
    url = stored.url
    if not is_local(url):
        return client
    seen = client.run(os.path.exists, url, on_error="ignore")
    if seen and all(seen.values()):
        return client
    blind = ", ".join(sorted(worker for worker, sees in seen.items() if not sees)[:3]) or "no worker answered"
    _log_once(
        client,
        "blind",
        logging.WARNING,
        f"the dask client that is around is not used: its workers ({blind}) cannot read the training set at '{url}'. "
        "Give `store=`, a folder or URL that all of them can read",
    )
    return None


def _is_fit(client: Any) -> bool:
    """Return True if all workers have this process's dkgp, as of now: workers come and go."""
    try:
        software = fetch_versions(client)
        if not software.workers:
            raise ClusterError("it has no workers at the moment")
        compare_versions(software)
    except ClusterError as error:
        _log_once(
            client,
            "unfit",
            logging.WARNING,
            f"the dask client that is around is not used, and the work done in this process: {error}. {_KEEP}",
        )
        return False
    return True


def _log_once(client: Any, kind: str, level: int, message: str) -> None:
    clients = _LOGGED.setdefault(kind, weakref.WeakSet())
    if client not in clients:
        clients.add(client)
        logger.log(level, message)
