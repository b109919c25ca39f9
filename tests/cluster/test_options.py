"""Options of clusters on the command line, in files and in the environment, and their errors."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import dask
import pytest
from click.testing import CliRunner

from dkgp.cli.parameters import DeclaredCommand, cluster_from, cluster_options
from dkgp.cluster import ClusterOptions, configured_options, open_executor
from dkgp.cluster.configuration import CONFIGURATION_KEYS, set_config_file
from dkgp.cluster.connect import start_cluster
from dkgp.cluster.options import KINDS, _setting
from dkgp.errors import ClusterError, InputError, UsageError

EVERYTHING: dict[str, Any] = {
    "kind": "slurm",
    "adaptive": (2, 8),
    "threads_per_worker": 4,
    "worker_memory_bytes": 8 * 2**30,
    "cache_tiles": 3 * 2**30,
    "worker_wait_seconds": 60.0,
    "round_deadline_seconds": 120.0,
    "tls_ca": "ca.pem",
    "tls_cert": "cert.pem",
    "tls_key": "key.pem",
    "performance_report": "report.html",
    "settings": {"queue": "short", "job_extra_directives": ["--exclusive"]},
}


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    with dask.config.set({"dkgp": None, "scheduler-address": None}):
        yield


def from_command_line(*arguments: str) -> ClusterOptions:
    taken: list[ClusterOptions] = []

    @click.command(cls=DeclaredCommand)
    @cluster_options
    def command(**options: Any) -> None:
        taken.append(cluster_from(options))
        assert not options

    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return taken[0]


def test_options_survive_json() -> None:
    options = ClusterOptions(**EVERYTHING)
    assert ClusterOptions(**json.loads(json.dumps(asdict(options)))) == options


def test_a_workers_cache_leaves_it_half_of_its_memory() -> None:
    assert ClusterOptions(worker_memory_bytes=2**30).cache_bytes == 2**29
    assert ClusterOptions(worker_memory_bytes=2**40).cache_bytes == ClusterOptions().cache_bytes


def test_settings_are_not_shown() -> None:
    assert "hunter2" not in repr(ClusterOptions(kind="ssh", settings={"connect_options": {"password": "hunter2"}}))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "mesos"}, "unknown cluster kind 'mesos'; known: auto, gateway, kubernetes, local"),
        ({"workers": 0}, "number of workers must be at least 1; got 0"),
        ({"worker_memory_bytes": 0}, "memory in bytes must be at least 1"),
        ({"worker_wait_seconds": 0.0}, "must be positive; got 0"),
        ({"round_deadline_seconds": 0.0}, "round of tasks must be positive; got 0"),
        ({"cache_tiles": -1}, "`cache_tiles` takes a number of bytes, or auto; got -1"),
        ({"cache_tiles": "some"}, "got 'some'"),
        ({"kind": "slurm", "workers": 2, "adaptive": (1, 4)}, "both a fixed number of workers"),
        ({"kind": "slurm", "adaptive": (0, 4)}, "1 <= MIN <= MAX"),
        ({"kind": "slurm", "adaptive": (5, 4)}, "got MIN 5, MAX 4"),
        (
            {"kind": "local", "adaptive": (1, 4)},
            "'local' cannot be adaptive; these can: processes, gateway",
        ),
        ({"kind": "ssh", "adaptive": (1, 4)}, "'ssh' cannot be adaptive"),
        ({"scheduler": "tcp://a:1", "adaptive": (1, 4)}, "running scheduler"),
        ({"scheduler_file": "s.json", "adaptive": (1, 4)}, "running scheduler"),
        ({"scheduler": "tcp://a:1", "settings": {"queue": "x"}}, "a running scheduler takes no settings; got queue"),
        ({"kind": "none", "settings": {"queue": "x"}}, "'none' takes no settings"),
        ({"tls_key": "key.pem"}, "give `tls_cert` as well"),
        ({"tls_ca": "ca.pem"}, "`tls_ca` without `tls_cert`"),
        ({"tls_cert": "cert.pem"}, "`tls_cert` without `tls_ca`"),
        ({"resources": {"dkgp": 0.0}}, "amounts above 0, such as dkgp=1; got dkgp=0"),
        ({"resources": {"dkgp": math.nan}}, "got dkgp=nan"),
        ({"resources": {"": 1.0}}, "got no name=1"),
    ],
)
def test_contradictions_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        ClusterOptions(**wrong)
    assert words in str(caught.value)


# ----------------------------------------------------------------------------------------------------- the command line


def test_every_option_of_the_command_line() -> None:
    given = (
        "--cluster slurm --adaptive 2 8 --threads-per-worker 4 --worker-memory 8GiB --worker-wait 60 --tls-ca ca.pem"
    )
    given += (
        " --round-deadline 120 --cache-tiles 3GiB --tls-cert cert.pem --tls-key key.pem --cluster-option queue=short"
    )
    given += " --performance-report report.html"
    directives = ("--cluster-option", 'job_extra_directives=["--exclusive"]')
    assert from_command_line(*given.split(), *directives) == ClusterOptions(**EVERYTHING)
    found = from_command_line(
        *("--scheduler", "tls://a:1", "--scheduler-file", "s.json", "--workers", "3"),
        *("--resources", "dkgp=1", "--resources", "GPU=0.5"),
    )
    resources = {"dkgp": 1.0, "GPU": 0.5}
    assert found == ClusterOptions(scheduler="tls://a:1", scheduler_file="s.json", workers=3, resources=resources)
    with dask.config.set({"dkgp": {"cluster": {"scheduler": "tls://a:1", "resources": {"dkgp": 1, "GPU": 0.5}}}}):
        assert from_command_line("--workers", "3").resources == resources


@pytest.mark.parametrize(("said", "meant"), [("auto", "auto"), ("none", 0), ("512MiB", 2**29)])
def test_tiles_to_keep_over_what_is_configured(said: str, meant: object) -> None:
    with dask.config.set({"dkgp": {"cluster": {"cache-tiles": "1GiB"}}}):
        assert from_command_line().cache_tiles == 2**30
        assert from_command_line("--cache-tiles", said).cache_tiles == meant
    with dask.config.set({"dkgp": {"cluster": {"cache-tiles": said}}}):
        assert from_command_line().cache_tiles == meant


def test_nothing_said_is_the_default() -> None:
    assert from_command_line() == ClusterOptions()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("queue=short", "short"),
        ("cores=8", 8),
        ("walltime=01:00:00", "01:00:00"),
        ("nanny=false", False),
        ('env={"A": "b=c"}', {"A": "b=c"}),
        ("queue=", ""),
        ('account="8"', "8"),
    ],
)
def test_values_of_settings(text: str, value: Any) -> None:
    name = text.partition("=")[0]
    assert from_command_line("--cluster", "slurm", "--cluster-option", text).settings == {name: value}


@pytest.mark.parametrize("wrong", ["dkgp", "dkgp=", "dkgp=many"])
def test_a_resource_needs_an_amount(wrong: str) -> None:
    with pytest.raises(click.BadParameter, match="NAME=AMOUNT, such as dkgp=1"):
        from_command_line("--resources", wrong)


def test_resources_are_those_of_a_running_scheduler() -> None:
    for kind in ("auto", "none", "processes"):
        with (
            pytest.raises(UsageError, match="`resources` goes with a running scheduler"),
            open_executor(ClusterOptions(kind=kind, resources={"dkgp": 1.0}), 1),
        ):
            pass
    with (
        dask.config.set({"dkgp": {"cluster": {"resources": {"dkgp": "much"}}}}),
        pytest.raises(UsageError, match=r"dkgp.cluster.resources .* must be a mapping of names to amounts"),
    ):
        from_command_line()


@pytest.mark.parametrize("wrong", ["queue", "=short"])
def test_a_setting_needs_a_name_and_a_value(wrong: str) -> None:
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        from_command_line("--cluster", "slurm", "--cluster-option", wrong)


def test_the_command_line_knows_all_kinds_and_keys() -> None:
    @click.command(cls=DeclaredCommand)
    @cluster_options
    def command(**options: Any) -> None: ...

    flags = {flag for parameter in command.params for flag in parameter.opts}
    others = {
        "--worker-memory",
        "--cache-tiles",
        "--worker-wait",
        "--round-deadline",
        "--plain-text",
        "--cluster-option",
        "--performance-report",
        "--resources",
    }
    others |= {
        "--cluster-config",
        "--tls-ca",
        "--tls-cert",
        "--tls-key",
        "--workers",
        "--adaptive",
        "--threads-per-worker",
    }
    assert flags == {"--scheduler", "--scheduler-file", "--cluster"} | others
    (kind,) = (parameter for parameter in command.params if parameter.name == "cluster")
    choices = ["auto", "local", "none", "processes", "gateway", "kubernetes", "lsf", "pbs", "slurm", "ssh"]
    assert list(kind.type.choices) == choices  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------- configuration

CONFIGURED = """
dkgp:
  cluster:
    kind: slurm
    adaptive: [2, 8]
    threads-per-worker: 4
    worker_memory: 8GiB
    cache-tiles: 3GiB
    worker-wait: 1 minute
    round-deadline: 2 minutes
    tls-ca: ca.pem
    tls-cert: cert.pem
    tls-key: key.pem
    performance-report: report.html
    settings:
      queue: short
      job_extra_directives: ["--exclusive"]
jobqueue:
  slurm:
    walltime: "02:00:00"
"""


@pytest.fixture
def config_file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CONFIGURED)
    return str(path)


def test_every_key_of_a_file(config_file: str) -> None:
    expected = ClusterOptions(**EVERYTHING, config_file=config_file)
    assert from_command_line("--cluster-config", config_file) == expected


def test_the_rest_of_a_file_holds_while_it_is_used(config_file: str) -> None:
    with dask.config.set({"jobqueue.slurm.walltime": "00:30:00", "jobqueue.slurm.queue": "long"}):
        with set_config_file(config_file):
            assert dask.config.get("jobqueue.slurm.walltime") == "02:00:00"
            assert dask.config.get("jobqueue.slurm.queue") == "long"  # what the file does not speak of stays
            assert dask.config.get("dkgp", None) is None
        assert dask.config.get("jobqueue.slurm.walltime") == "00:30:00"


def test_environment_and_file_in_daskss_configuration(tmp_path: Path) -> None:
    """As a user sets them: variables, and a YAML file in dask's folder; variables win."""
    (tmp_path / "dkgp.yaml").write_text("dkgp: {cluster: {kind: pbs, threads-per-worker: 3, settings: {queue: long}}}")
    environment = {
        **os.environ,
        "DASK_CONFIG": str(tmp_path),
        "DASK_DKGP__CLUSTER__KIND": "slurm",
        "DASK_DKGP__CLUSTER__ADAPTIVE": "[2, 8]",
        "DASK_DKGP__CLUSTER__WORKER_WAIT": "90",
    }
    code = "from dkgp.cluster import configured_options as c; import json, dataclasses as d; "
    code += "print(json.dumps(d.asdict(c({}))))"
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = json.loads(printed)
    assert (found["kind"], found["adaptive"], found["worker_wait_seconds"]) == ("slurm", [2, 8], 90.0)
    assert (found["threads_per_worker"], found["settings"]) == (3, {"queue": "long"})


def test_what_is_said_wins_over_the_file_and_the_file_over_dask(config_file: str) -> None:
    with dask.config.set({"dkgp": {"cluster": {"kind": "pbs", "worker-wait": 5, "threads_per_worker": 9}}}):
        options = from_command_line("--cluster-config", config_file, "--threads-per-worker", "2")
    assert (options.kind, options.worker_wait_seconds, options.threads_per_worker) == ("slurm", 60.0, 2)


def test_a_fixed_size_said_replaces_configured_limits_and_the_other_way_round(config_file: str) -> None:
    options = from_command_line("--cluster-config", config_file, "--workers", "5")
    assert (options.workers, options.adaptive) == (5, None)
    with dask.config.set({"dkgp": {"cluster": {"kind": "slurm", "workers": 5}}}):
        options = from_command_line("--adaptive", "1", "3")
    assert (options.kind, options.workers, options.adaptive) == ("slurm", None, (1, 3))


def test_settings_said_are_added_to_those_configured(config_file: str) -> None:
    options = from_command_line("--cluster-config", config_file, "--cluster-option", "queue=long")
    assert options.settings == {"queue": "long", "job_extra_directives": ["--exclusive"]}


@pytest.mark.parametrize("said", [("--cluster", "processes"), ("--scheduler", "tls://a:1"), ("--cluster", "pbs")])
def test_what_is_configured_for_another_cluster_is_left_aside(config_file: str, said: tuple[str, str]) -> None:
    options = from_command_line("--cluster-config", config_file, *said)
    assert (options.workers, options.adaptive, options.threads_per_worker, options.settings) == (None, None, None, {})
    assert options.tls_ca == "ca.pem"


def test_the_same_kind_said_again_keeps_what_is_configured(config_file: str) -> None:
    assert from_command_line("--cluster-config", config_file, "--cluster", "slurm").settings["queue"] == "short"


def test_a_configured_scheduler_yields_to_a_kind_that_is_said() -> None:
    with dask.config.set({"dkgp": {"cluster": {"scheduler": "tcp://configured:1"}}}):
        assert configured_options({}).address() == "tcp://configured:1"
        assert from_command_line("--cluster", "local").address() is None


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"cluster": {"worker": 2}}, "unknown key dkgp.cluster.worker in dask's configuration; did you mean workers?"),
        ({"cluster": {"queue": "x"}}, f"Known: {', '.join(CONFIGURATION_KEYS)}"),
        ({"clusters": {}}, "unknown key dkgp.clusters in dask's configuration; did you mean cluster?"),
        ({"cluster": "slurm"}, "dkgp.cluster in dask's configuration must be a mapping"),
        ("slurm", "dkgp in dask's configuration must be a mapping"),
        (
            {"cluster": {"workers": "two"}},
            "dkgp.cluster.workers in dask's configuration must be a whole number; got 'two'",
        ),
        ({"cluster": {"workers": True}}, "must be a whole number"),
        ({"cluster": {"kind": 3}}, "dkgp.cluster.kind in dask's configuration must be text; got 3"),
        ({"cluster": {"kind": "mesos"}}, "unknown cluster kind 'mesos'"),
        ({"cluster": {"adaptive": 3}}, "must be the two numbers [MIN, MAX]; got 3"),
        ({"cluster": {"worker-memory": "much"}}, "must be a size such as 4GiB; got 'much'"),
        ({"cluster": {"worker-wait": "long"}}, "must be seconds"),
        (
            {"cluster": {"settings": "password=hunter2"}},
            "dkgp.cluster.settings in dask's configuration must be a mapping",
        ),
    ],
)
def test_wrong_configuration_is_refused(section: Any, words: str) -> None:
    with dask.config.set({"dkgp": section}), pytest.raises(UsageError) as caught:
        configured_options({})
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file"),
        ("- a\n", "holds no YAML mapping"),
        ("a: b\npassword: hunter2: [\n", "holds no YAML mapping, see line 2"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "cluster.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as caught:
        from_command_line("--cluster-config", str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("content", ["jobqueue:\n  slurm: {walltime: '02:00:00'}\n", "distributed: {}\n"])
def test_a_file_of_dasks_alone_is_taken(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(content)
    assert from_command_line("--cluster-config", str(path)) == ClusterOptions(config_file=str(path))


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("", "it holds nothing"),
        ("kind: slurm\nworkers: 4\n", "it holds kind, workers"),
        ("cluster: {kind: slurm}\n", "cluster"),
    ],
)
def test_a_file_that_says_nothing_of_the_cluster_is_refused(tmp_path: Path, content: str, shown: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        from_command_line("--cluster-config", str(path))
    for words in (str(path), "no section dkgp.cluster", shown, "dkgp: {cluster: {kind: slurm, workers: 4}}"):
        assert words in str(caught.value)


def test_a_benchmarks_record_has_no_values_of_settings() -> None:
    from dkgp.commands.reporting.measurements import report

    cluster = ClusterOptions(kind="ssh", settings={"connect_options": {"password": "hunter2"}})
    document = report("solve", "title", [], [], {}, cluster=asdict(cluster))
    assert "hunter2" not in json.dumps(document)
    assert document["settings"]["cluster"]["settings"] == ["connect_options"]


# Secrets among a cluster's settings: read from where others cannot look, and shown by no message.


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


# Settings that are held while a cluster runs take nothing away when they go.


SCRIPT = """
import sys
from contextlib import ExitStack

import dask

from dkgp.cluster.connect import start_cluster
from dkgp.cluster.options import ClusterOptions

if __name__ == "__main__":
    assert "distributed" not in sys.modules
    with ExitStack() as stack:
        start_cluster(ClusterOptions(kind="local"), None, stack)
    print("comm" in dask.config.get("distributed", {}))
"""


def test_distributeds_defaults_outlive_the_first_cluster() -> None:
    """They come with its import; where that is made while a setting of its own is held, they go with that."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=False)
    assert (run.stdout.split(), run.returncode) == (["True"], 0), run.stderr
