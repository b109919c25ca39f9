"""Properties of every kind of cluster that is declared: what it needs is said before anything is started."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions, connect, open_executor
from dkgp.cluster.options import ClusterKind, cluster_kinds
from dkgp.errors import ClusterError, ExitCode, MissingExtraError, UsageError
from tests.cluster.helpers import Listener

KINDS = {kind.name: kind for kind in cluster_kinds()}
LOOK = {
    "slurm": "squeue --me",
    "pbs": "qstat",
    "lsf": "bjobs",
    "kubernetes": "kubectl get pods",
    "gateway": "workers' logs",
    "ssh": "on one of the hosts",
}


def those(accepts: Any) -> pytest.MarkDecorator:
    names = [name for name, kind in KINDS.items() if accepts(kind)]
    assert names
    return pytest.mark.parametrize("kind", [KINDS[name] for name in names], ids=names)


def test_dkgps_own_kinds_and_those_that_queue() -> None:
    assert set(KINDS) == {"auto", "none", "local", "processes", *LOOK}
    queueing = [kind for kind in KINDS.values() if kind.queues]
    assert {kind.name for kind in queueing} == set(LOOK) - {"ssh"}
    assert all("`worker_wait_seconds`" in kind.no_workers for kind in queueing)
    assert (connect.WORKERS_WAIT_SECONDS, connect.QUEUE_WAIT_SECONDS) == (120.0, 600.0)


@those(lambda kind: kind.queues)
def test_clusters_of_no_size_are_refused(kind: ClusterKind) -> None:
    with (
        pytest.raises(UsageError, match=f"`cluster` {kind.name} needs .*: give `workers` N or `adaptive` MIN MAX"),
        open_executor(ClusterOptions(kind=kind.name), 1),
    ):
        pass


@those(lambda kind: kind.adaptive is None and kind.name != "auto")
def test_a_size_that_cannot_follow_the_work_is_refused(kind: ClusterKind) -> None:
    with pytest.raises(UsageError, match=f"a cluster of kind '{kind.name}' cannot be adaptive; these can: .*slurm"):
        ClusterOptions(kind=kind.name, adaptive=(1, 2))


@those(lambda kind: not kind.takes_settings)
def test_settings_are_refused_where_no_class_takes_them(kind: ClusterKind) -> None:
    with pytest.raises(UsageError, match=f"the cluster kind '{kind.name}' takes no settings; got queue"):
        ClusterOptions(kind=kind.name, settings={"queue": "x"})


@those(lambda kind: kind.takes_settings and kind.name != "gateway")  # a gateway is asked what it offers
def test_a_setting_that_there_is_not_is_named_without_its_value(kind: ClusterKind) -> None:
    needed = {"plain_text": True} if kind.name == "kubernetes" else {}
    options = ClusterOptions(kind=kind.name, settings={"no_such_thing": "hunter2"}, workers=1, **needed)
    wrong = f"`cluster` {kind.name} has no setting 'no_such_thing'"
    with pytest.raises(UsageError, match=wrong) as caught, open_executor(options, 10**6):
        pass
    assert "hunter2" not in str(caught.value)


@those(lambda kind: kind.extra)
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, kind: ClusterKind) -> None:
    assert kind.extra is not None
    monkeypatch.setitem(sys.modules, kind.extra.module, None)
    with pytest.raises(MissingExtraError) as caught, open_executor(ClusterOptions(kind=kind.name, workers=3), 1):
        pass
    assert f"dkgp[{kind.extra.name}]" in str(caught.value)
    assert f"`cluster` {kind.name}" in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


class NoWorkers:
    """A client whose scheduler has no workers."""

    class scheduler:  # noqa: N801
        address = "tcp://10.0.0.1:1"
        ncores = None

    def sync(self, *arguments: Any, **options: Any) -> dict[str, int]:
        return {}


@those(lambda kind: kind.extra)
def test_what_to_look_at_where_no_workers_come(kind: ClusterKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "WORKERS_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(connect, "QUEUE_WAIT_SECONDS", 0.1)
    with pytest.raises(ClusterError) as caught:
        connect._wait_for_workers(NoWorkers(), ClusterOptions(kind=kind.name, workers=2), None, Listener())  # type: ignore[arg-type]
    assert LOOK[kind.name] in str(caught.value)
