"""Secrets among a cluster's settings: read from where others cannot look, and shown by no message."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions
from dkgp.cluster.connect import start_cluster
from dkgp.cluster.options import KINDS, _setting
from dkgp.errors import ClusterError, UsageError

SECRET = "hunter2-hunter2"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def test_a_value_comes_from_a_file_or_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PASSWORD", SECRET)
    assert _setting(f"password=@{file}") == ("password", SECRET)
    assert _setting("password=@env:GATEWAY_PASSWORD") == ("password", SECRET)
    # Not read as JSON, unlike what stands on the command line.
    file.write_text("12345")
    assert _setting(f"pin=@{file}") == ("pin", "12345")
    assert _setting("pin=12345") == ("pin", 12345)
    assert _setting('name="@home"') == ("name", "@home")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("password=@/no/such/file", "cannot be read: No such file.*names a file"),
        ("password=@env:NO_SUCH_VARIABLE", "no variable 'NO_SUCH_VARIABLE'"),
        ("password=@FOLDER", "cannot be read|or is no file"),
        ("password=@OPEN", "every user of this machine.*chmod 600"),
        ("password=@LARGE", "larger than 65,536 bytes"),
    ],
)
def test_what_is_no_place_for_a_secret_is_refused(file: Path, text: str, words: str) -> None:
    (file.parent / "open").write_text(SECRET)
    (file.parent / "open").chmod(0o644)
    (file.parent / "large").write_text("x" * 70_000)
    (file.parent / "large").chmod(0o600)
    for name in ("FOLDER", "OPEN", "LARGE"):
        text = text.replace(f"@{name}", f"@{file.parent / ('' if name == 'FOLDER' else name.lower())}")
    with pytest.raises(ValueError, match=re.compile(words, re.DOTALL)) as caught:
        _setting(text)
    assert SECRET not in str(caught.value)


def test_values_are_hidden_by_where_they_came_from_and_by_their_names(file: Path) -> None:
    name, value = _setting(f"address=@{file}")
    cases: list[dict[str, Any]] = [
        {name: value},
        {"password": SECRET},
        {"connect_options": {"password": SECRET}},
        {"auth": ["basic", SECRET]},
    ]
    for settings in cases:
        options = ClusterOptions(kind="gateway", settings={**settings, "image": "dkgp"})
        # As a job of the service is told them, and as they are given a root of their own.
        for told in (options, ClusterOptions(**json.loads(json.dumps(asdict(options)))), options.anchored()):
            assert told.redacted(f"login of dkgp with {SECRET} failed") == "login of dkgp with *** failed"
        assert SECRET not in repr(options)


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_a_cluster_that_repeats_its_password_is_not_repeated(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(options: ClusterOptions, security: Any, stack: Any) -> Any:
        raise error(f"cannot log in with {options.settings['password']}")

    kind = replace(KINDS.find("gateway"), start=start, extra=None, in_process=True)
    monkeypatch.setattr("dkgp.cluster.connect.KINDS", type("Kinds", (), {"find": staticmethod(lambda name: kind)}))
    options = ClusterOptions(kind="gateway", workers=1, settings={"password": SECRET})
    with pytest.raises((UsageError, ClusterError)) as caught, ExitStack() as stack:
        start_cluster(options, None, stack)
    assert SECRET not in str(caught.value)
    assert "cannot log in with ***" in str(caught.value)
