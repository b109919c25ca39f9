"""Call every estimator's methods in a process, then in a forked child; a script, so that no thread of pytest's counts.

Prints one JSON object: by estimator, each method with its outcome in the child ("same", "differs", an error, "hangs").
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process.kernels import RBF

from dkgp import GaussianProcessClassifier, GaussianProcessRegressor
from dkgp.errors import InputError
from tests.estimators.classification.conftest import make_labelled
from tests.estimators.conftest import make_problem
from tests.estimators.test_conformance import ESTIMATORS

SECONDS = 120.0
DROP_INS: dict[str, Any] = {
    "drop-in regressor": GaussianProcessRegressor(RBF(1.0), alpha=0.01, optimizer=None),
    "drop-in classifier": GaussianProcessClassifier(RBF(1.0), optimizer=None),
}
METHODS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "predict": (
        ("predict", {}),
        ("predict", {"return_std": True}),
        ("predict", {"return_bounds": True}),
        ("predict", {"return_certified": True}),
    ),
    "predict_gradients": (("predict_gradients", {}), ("predict_gradients", {"return_std": True})),
    "sample_y": (("sample_y", {}),),
    "decision_function": (("decision_function", {}), ("decision_function", {"return_bounds": True})),
    "predict_proba": (("predict_proba", {}), ("predict_proba", {"return_intervals": True})),
    "predict_log_proba": (("predict_log_proba", {}),),
    "score": (("score", {}),),
    "log_marginal_likelihood": (("log_marginal_likelihood", {}),),
    "fit": (("fit", {}),),
}


def calls(estimator: Any, data: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each method that the estimator has, with each argument that it takes."""
    for name, variants in METHODS.items():
        method = getattr(estimator, name, None)
        if method is None:
            continue
        for _, keywords in variants:
            if keywords.keys() <= inspect.signature(method).parameters.keys():
                yield f"{name}({', '.join(keywords)})", partial(call, estimator, name, keywords, data)


def call(estimator: Any, name: str, keywords: dict[str, Any], data: Any) -> list[np.ndarray]:
    """Call a method and return its numbers."""
    result: Any
    if name == "fit":
        result = clone(estimator).fit(data.X, data.y).predict(data.X_new)
    elif name == "score":
        result = estimator.score(data.X, data.y)
    elif name == "log_marginal_likelihood":
        result = estimator.log_marginal_likelihood()
    else:
        try:
            result = getattr(estimator, name)(data.X_new, **keywords)
        except InputError as error:  # proves nothing, has no gradient
            result = str(error)
    return [np.asarray(part) for part in numbers(result)]


def numbers(result: Any) -> Iterator[Any]:
    """Arrays of nested tuples."""
    if isinstance(result, tuple):
        for part in result:
            yield from numbers(part)
    elif result is not None:
        yield result


def in_child(before: dict[str, list[np.ndarray]], estimator: Any, data: Any, pipe: Any) -> None:
    """Call everything again; send each outcome."""
    for name, method in calls(estimator, data):
        try:
            now = method()
            same = all(np.array_equal(a, b) for a, b in zip(now, before[name], strict=True))
            pipe.send((name, "same" if same else "differs"))
        except Exception as error:
            pipe.send((name, f"{type(error).__name__}: {error}"))
    pipe.close()


def fork_and_call(estimator: Any, data: Any, before: dict[str, Any]) -> dict[str, str]:
    """Outcomes of the methods in a forked child; the first that does not return hangs, and ends the child."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(before, estimator, data, sender))
    child.start()
    sender.close()
    outcomes = dict.fromkeys(before, "hangs")
    deadline = time.monotonic() + SECONDS
    try:
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            name, outcome = receiver.recv()
            outcomes[name] = outcome
    except EOFError:
        pass
    if child.is_alive():
        child.join(2.0)
        child.kill()
    child.join()
    return outcomes


def main() -> None:
    warnings.simplefilter("ignore")
    numbers_, labels = make_problem(120, 20, seed=3), make_labelled(90, 20, seed=5)
    wanted = sys.argv[1:]
    outcomes: dict[str, dict[str, str]] = {}
    for title, unfitted in {**ESTIMATORS, **DROP_INS}.items():
        if wanted and title not in wanted:
            continue
        data = labels if is_classifier(unfitted) else numbers_
        estimator = clone(unfitted).fit(data.X, data.y)
        before = {name: method() for name, method in calls(estimator, data)}
        outcomes[title] = fork_and_call(estimator, data, before)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
