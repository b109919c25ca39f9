"""Parsers of users' texts take time in proportion to the text, whatever stands in it.

Times are of the processor in this thread, which other programs do not lengthen, and the bound is ten times the time
that the longest of these texts may take.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest

from dkgp.cluster.starters.jobqueue import walltime_seconds
from dkgp.commands.tune import TuneJob
from dkgp.data.remote.addresses import normalise_url, scrubbed
from dkgp.errors import InputError, UsageError
from dkgp.kernels.expression import parse_kernel
from dkgp.kernels.functions import _explanation
from dkgp.models.tuning.space import as_prior, matches, parse_bounds, parse_fixed, parse_priors
from dkgp.registry import byte_count, whole_numbers
from dkgp.service.roots import resolved
from dkgp.service.specification import job_from_options
from dkgp.service.web.guard import _foreign
from dkgp.service.web.limits import parse_json

LENGTH = 100_000
SECONDS = 2.0

PARSERS: dict[str, Callable[[str], Any]] = {
    "prior": as_prior,
    "pattern": lambda text: matches(text, "noise_variance"),
    "bounds": lambda text: parse_bounds([text]),
    "fixed": lambda text: parse_fixed([text]),
    "priors": lambda text: parse_priors([f"gamma={text}"]),
    "address": normalise_url,
    "message": scrubbed,
    "place": resolved,
    "kernel": lambda text: parse_kernel(text, 2),
    "compiler's message": lambda text: _explanation(ValueError(text)),
    "size": byte_count,
    "list": whole_numbers,
    "walltime": lambda text: walltime_seconds("slurm", text),
    "host and origin": lambda text: _foreign(
        {"path": "/v1/jobs", "headers": [(b"host", text.encode()), (b"origin", text.encode())]}
    ),
    "JSON": lambda text: parse_json(text.encode()),
}
_LETTERS = (
    "a",
    " ",
    "1",
    ".",
    "(",
    "[",
    "[!a",
    "*a",
    "?",
    ",",
    "=",
    ":",
    "-",
    "/",
    "http://",
    "https://a?",
    "://",
    "`a",
)
LONG = ("pattern", "message", "place")
UNITS = (*_LETTERS, "@", "'", "\\", "\n", "\x1b[1", "lognormal(", "rbf+", " Raised", "1:", "%2", '{"a":')
BEGINNINGS = ("", "lognormal(1", "http://", "/", "1")


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    "parser", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in PARSERS]
)
def test_no_text_takes_long(parser: str) -> None:
    for unit in UNITS:
        repeated = (unit * (LENGTH // len(unit) + 1))[:LENGTH]
        for beginning in BEGINNINGS:
            for end in ("", "x"):
                began = time.thread_time()
                with contextlib.suppress(InputError, UsageError, ValueError):
                    PARSERS[parser](f"{beginning}{repeated}{end}")
                assert time.thread_time() - began < SECONDS, (beginning, unit, end)


@pytest.mark.parametrize("form", ["{}=0.1:1", "{}=0.1", "{}=lognormal(1, 1)"])
def test_as_many_settings_as_a_submission_holds_take_no_time(form: str) -> None:
    texts = tuple(form.format(f"gamma.{number}") for number in range(9_000))
    field = {"{}=0.1:1": "bounds", "{}=0.1": "fixed"}.get(form, "priors")
    began = time.thread_time()
    job = TuneJob("/train.zarr", "/hyper.json", noise_model="gp", **{field: texts})  # type: ignore[arg-type]
    job.check()
    assert time.thread_time() - began < SECONDS
    assert len(job.named()[field]) == 9_000
    with pytest.raises(UsageError, match="given twice for 'gamma.7'"):
        TuneJob("/train.zarr", "/hyper.json", **{field: (*texts, texts[7])}).check()  # type: ignore[arg-type]


def test_a_prior_of_blanks_is_refused_at_once() -> None:
    began = time.thread_time()
    options = {"dataset": "/d.zarr", "out": "/h.json", "priors": [f"gamma=lognormal({' ' * 2700}"]}
    with pytest.raises(UsageError, match=r"a prior is written lognormal\(MEDIAN, SIGMA\)"):
        job_from_options("tune", options)
    assert time.thread_time() - began < SECONDS


@pytest.mark.parametrize("letters", ["ab.*?", "ab*[]!", "abc[a-c]", "ab-[!b]*"])
def test_patterns_match_as_the_standard_library_has_them(letters: str, rng: np.random.Generator) -> None:
    hits = 0
    for _ in range(1_500):
        name = "".join(rng.choice(list("abc-]["), rng.integers(0, 6)))
        pattern = "".join(rng.choice(list(letters), rng.integers(0, 9)))
        hits += matches(pattern, name)
        assert matches(pattern, name) == fnmatchcase(name, pattern), (pattern, name)
    assert hits > 20


def test_a_size_beyond_all_numbers_is_no_size() -> None:
    with pytest.raises(ValueError, match="is not a size; write it as 4GiB"):
        byte_count("9" * 400)


def test_queries_are_hidden_wherever_they_stand() -> None:
    text = "GET https://a/x?key=1 <http://b?c?d> 'https://e/f' see http://http://g?h and x=https://i?j\"k"
    expected = "GET https://a/x?... <http://b?...> 'https://e/f' see http://http://g?... and x=https://i?...\"k"
    assert scrubbed(text) == expected


def test_a_long_name_of_many_members_is_not_copied_for_each() -> None:
    options: Any = {f"k{number}": 1 for number in range(5_000)}
    for _ in range(4):
        options = {"A" * 200_000: options}
    began = time.thread_time()
    with pytest.raises(UsageError, match="tune has no such option"):
        job_from_options("tune", {"dataset": "/d.zarr", "out": "/h.json", "refine": options})
    assert time.thread_time() - began < SECONDS
