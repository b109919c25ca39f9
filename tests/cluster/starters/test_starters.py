"""The arguments of cluster classes, compared with the classes' signatures and job scripts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import pytest

from dkgp.cluster import ClusterOptions
from dkgp.cluster.connect import start_cluster
from dkgp.cluster.starters import jobqueue
from dkgp.cluster.starters.gateway import gateway_arguments
from dkgp.cluster.starters.jobqueue import job_arguments, lifetime_arguments, start_jobqueue, walltime_seconds
from dkgp.cluster.starters.kubernetes import kube_arguments
from dkgp.cluster.starters.local import local_arguments
from dkgp.cluster.starters.security import in_files, security_for_start, security_from
from dkgp.errors import ClusterError, InputError, UsageError
from tests.cluster.helpers import Certificates

GIB = 2**30
SIZES: dict[str, Any] = {"workers": 3, "threads_per_worker": 4, "worker_memory_bytes": 8 * GIB}


@pytest.fixture(autouse=True)
def jobqueue_defaults() -> Iterator[None]:
    """Use dask-jobqueue's own configuration, without the user's files."""
    import dask_jobqueue  # noqa: F401

    with dask.config.set(
        {f"jobqueue.{kind}.{name}": None for kind in ("slurm", "pbs", "lsf") for name in ("cores", "memory", "queue")}
    ):
        yield


def script(options: ClusterOptions, **more: Any) -> str:
    """The job that would be submitted for a worker."""
    arguments = job_arguments(options, **more)
    arguments.pop("scheduler_options")
    found = jobqueue.cluster_class(options.kind).job_cls
    return str(found("tcp://10.0.0.1:1", name="worker", **{"security": None, **arguments}).job_script())


# ----------------------------------------------------------------------------------------------------- queueing systems


def test_a_slurm_job() -> None:
    settings = {"queue": "short", "account": "gp", "walltime": "02:00:00", "interface": "lo"}
    text = script(ClusterOptions(kind="slurm", settings=settings, **SIZES))
    for line in (
        "#SBATCH -p short",
        "#SBATCH -A gp",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --mem=8G",
        "#SBATCH -t 02:00:00",
    ):
        assert line in text.splitlines()
    command = text.splitlines()[-1]
    assert f"{sys.executable} -P -m distributed.cli.dask_worker tcp://10.0.0.1:1" in command
    assert "--nthreads 4 --memory-limit 8.00GiB --nanny" in command
    assert "--lifetime 6600s --lifetime-stagger 300s" in command
    assert "--interface lo" in command


def test_a_job_of_several_processes() -> None:
    command = script(ClusterOptions(kind="slurm", settings={"processes": 2}, **SIZES)).splitlines()
    assert "#SBATCH --cpus-per-task=8" in command
    assert "#SBATCH --mem=16G" in command
    assert "--nthreads 4 --memory-limit 8.00GiB --nworkers 2" in command[-1]


def test_pbs_and_lsf_jobs() -> None:
    text = script(ClusterOptions(kind="pbs", settings={"queue": "short", "walltime": "01:00:00"}, **SIZES))
    assert "#PBS -l select=1:ncpus=4:mem=8192MB" in text
    assert "#PBS -q short" in text
    assert "--lifetime 3240s" in text
    text = script(ClusterOptions(kind="lsf", settings={"walltime": "01:00", "lsf_units": "mb"}, **SIZES))
    assert "#BSUB -n 4" in text
    assert "#BSUB -M 8590" in text
    assert "--lifetime 3240s" in text


def test_jobqueues_own_configuration_keeps_working() -> None:
    configured = {
        "jobqueue.slurm.cores": 6,
        "jobqueue.slurm.memory": "12GiB",
        "jobqueue.slurm.queue": "configured",
        "jobqueue.slurm.processes": 3,
        "jobqueue.slurm.worker-extra-args": ["--lifetime", "100s"],
        "jobqueue.slurm.scheduler-options": {"port": 1234},
    }
    with dask.config.set(configured):
        options = ClusterOptions(kind="slurm", workers=3)
        text = script(options)
        assert job_arguments(options)["scheduler_options"] == {"port": 1234, "dashboard_address": "127.0.0.1:0"}
    assert "#SBATCH -p configured" in text
    assert "--nthreads 2 --memory-limit 4.00GiB --nworkers 3" in text
    assert text.count("--lifetime") == 1
    assert "--lifetime 100s" in text


def test_certificates_reach_the_workers(certificates: Certificates) -> None:
    options = ClusterOptions(kind="slurm", **SIZES, **certificates.options())
    command = script(options, security=security_from(options)).splitlines()[-1]
    for name, path in (("ca-file", certificates.ca), ("cert", certificates.cert), ("key", certificates.key)):
        assert f"--tls-{name} {path}" in command


def test_certificates_of_the_run_go_where_all_nodes_see_them(tmp_path: Path) -> None:
    options = ClusterOptions(kind="slurm", **SIZES)
    given = ClusterOptions(kind="slurm", settings={"shared_temp_directory": "/given"}, **SIZES)
    assert (jobqueue._shared_folder(options), jobqueue._shared_folder(given)) == (str(Path.home()), "/given")
    with dask.config.set({"jobqueue.slurm.shared-temp-directory": str(tmp_path)}):
        assert jobqueue._shared_folder(options) == str(tmp_path)
    made = security_for_start(options)
    assert made is not None
    with in_files(made, str(tmp_path)) as security:
        command = script(options, security=security).splitlines()[-1]
        (path,) = tmp_path.glob(".dkgp-certificates-*/certificate.pem")
        assert all(f"--tls-{name} {path}" in command for name in ("ca-file", "cert", "key"))
        security.get_connection_args("worker")
    assert not path.parent.exists()
    with pytest.raises(InputError, match="shared_temp_directory=DIR"), in_files(made, "/no/such/folder"):
        pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the cores and the memory of a job. Give `threads_per_worker` N and `worker_memory_bytes` SIZE"),
        ({"threads_per_worker": 4}, "needs the memory of a job. Give `worker_memory_bytes` SIZE"),
        ({**SIZES, "settings": {"quue": "x"}}, "has no setting 'quue'; did you mean queue?"),
        ({**SIZES, "settings": {"cores": 4}}, "both `threads_per_worker` and the setting 'cores'"),
        ({**SIZES, "settings": {"memory": "1GB"}}, "both `worker_memory_bytes` and the setting 'memory'"),
        ({**SIZES, "settings": {"n_workers": 4}}, "the setting 'n_workers' is said by `workers`"),
        ({**SIZES, "settings": {"processes": "two"}}, "processes must be a whole number from 1; got 'two'"),
        ({**SIZES, "settings": {"walltime": "soon"}}, "'soon' is no walltime that slurm knows"),
        ({**SIZES, "settings": {"config_name": "nowhere"}}, "no section 'jobqueue.nowhere'"),
    ],
)
def test_settings_of_jobs_that_cannot_be_used(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        job_arguments(ClusterOptions(kind="slurm", **options))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "walltime", "seconds"),
    [
        ("slurm", "30", 1800),
        ("slurm", "10:30", 630),
        ("slurm", "01:02:03", 3723),
        ("slurm", "2-12", 216_000),
        ("slurm", "1-01:30", 91_800),
        ("slurm", "1-00:00:30", 86_430),
        ("pbs", "90", 90),
        ("pbs", "01:00:00", 3600),
        ("lsf", "90", 5400),
        ("lsf", "2:30", 9000),
    ],
)
def test_walltimes(kind: str, walltime: str, seconds: float) -> None:
    assert walltime_seconds(kind, walltime) == seconds


@pytest.mark.parametrize(("kind", "walltime"), [("pbs", "1-00:00"), ("lsf", "1:00:00"), ("slurm", "1h"), ("slurm", "")])
def test_walltimes_that_a_queueing_system_does_not_know(kind: str, walltime: str) -> None:
    with pytest.raises(UsageError, match=f"no walltime that {kind} knows"):
        walltime_seconds(kind, walltime)


@pytest.mark.parametrize("walltime", [60.0, 300.0, 1800.0, 86_400.0, 604_800.0])
def test_every_worker_leaves_before_its_job_ends(walltime: float) -> None:
    names_and_values = lifetime_arguments(walltime)
    lifetime, stagger = (float(value.rstrip("s")) for value in names_and_values[1::2])
    assert 0 < lifetime - stagger < lifetime + stagger < walltime
    assert lifetime - stagger >= 0.25 * walltime


def test_a_machine_without_a_queueing_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with ExitStack() as stack, pytest.raises(ClusterError, match="`sbatch`, which is not on this machine's PATH"):
        start_jobqueue(ClusterOptions(kind="slurm", **SIZES), None, stack)


# -------------------------------------------------------------------------------------------------------- this machine


def test_local_clusters(certificates: Certificates) -> None:
    from distributed import LocalCluster

    found = local_arguments(ClusterOptions(kind="processes", settings={"scheduler_port": 8786}, **SIZES), None)
    assert {
        "n_workers": 3,
        "threads_per_worker": 4,
        "memory_limit": 8 * GIB,
        "processes": True,
    }.items() <= found.items()
    assert found["scheduler_port"] == 8786
    inspect.signature(LocalCluster).bind(**found)
    assert found["preload"] == ["dkgp.operators.preload"]
    with dask.config.set({"distributed.worker.preload": ["theirs"]}):
        found = local_arguments(ClusterOptions(kind="processes"), None)
    assert found["preload"] == ["dkgp.operators.preload", "theirs"]
    options = ClusterOptions(kind="processes", adaptive=(2, 5), **certificates.options())
    security = security_from(options)
    found = local_arguments(options, security)
    assert (found["n_workers"], found["security"], found["protocol"]) == (2, security, "tls://")
    assert "security" not in local_arguments(ClusterOptions(kind="local", **certificates.options()), security)


# ---------------------------------------------------------------------------------------------------------- Kubernetes


def kube(**options: Any) -> dict[str, Any]:
    from dask_kubernetes.operator import KubeCluster

    found = kube_arguments(ClusterOptions(kind="kubernetes", **{"plain_text": "tls_ca" not in options, **options}))
    inspect.signature(KubeCluster.__init__).bind(None, **found)
    return found


def test_a_kubernetes_cluster() -> None:
    from dask_kubernetes.operator.kubecluster.kubecluster import CreateMode, make_cluster_spec

    found = kube(settings={"image": "registry/dkgp:1", "namespace": "gp", "env": {"A": "b"}}, **SIZES)
    assert (found["n_workers"], found["create_mode"], found["shutdown_on_close"]) == (3, CreateMode.CREATE_ONLY, True)
    taken = inspect.signature(make_cluster_spec).parameters.keys() & found.keys()
    spec = make_cluster_spec(name="test", **{name: found[name] for name in taken})["spec"]["worker"]
    container = spec["spec"]["containers"][0]
    assert (spec["replicas"], container["image"]) == (3, "registry/dkgp:1")
    assert container["args"][:3] == ["dask-worker", "--nthreads", "4"]
    assert {"name": "PYTHONSAFEPATH", "value": "1"} in container["env"]
    assert {"name": "A", "value": "b"} in container["env"]
    listed = kube(settings={"image": "x", "env": [{"name": "A", "value": "b"}]}, workers=1)["env"]
    assert listed == [{"name": "PYTHONSAFEPATH", "value": "1"}, {"name": "A", "value": "b"}]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": str(8 * GIB)}


def test_an_existing_kubernetes_cluster_is_left_there() -> None:
    from dask_kubernetes.operator.kubecluster.kubecluster import CreateMode

    found = kube(workers=2, settings={"name": "shared", "create_mode": "CONNECT_ONLY"})
    assert (found["create_mode"], found["shutdown_on_close"]) == (CreateMode.CONNECT_ONLY, False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs an image that holds dkgp"),
        ({"settings": {"imge": "x"}}, "has no setting 'imge'; did you mean image?"),
        ({"settings": {"image": "x", "create_mode": "maybe"}}, "create_mode must be one of CREATE_ONLY"),
        ({"settings": {"image": "x", "resources": {}}, "threads_per_worker": 1}, "the setting 'resources'"),
        ({"settings": {"custom_cluster_spec": "f.yaml"}, "threads_per_worker": 1}, "the setting 'custom_cluster_spec'"),
        ({"settings": {"image": "x"}, "tls_ca": "a", "tls_cert": "b"}, "starts clusters without TLS"),
        ({"settings": {"image": "x"}, "plain_text": False}, "everyone who reaches their ports can run code there"),
    ],
)
def test_settings_of_kubernetes_that_cannot_be_used(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        kube(workers=1, **options)
    assert words in str(caught.value)


class FakeCluster:
    """Notes what it is told, as the classes of clusters that are elsewhere."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.calls = arguments, [""][:0]

    def scale(self, n: int) -> None:
        self.calls.append(f"scale {n}")

    def adapt(self, minimum: int, maximum: int) -> None:
        self.calls.append(f"adapt {minimum} {maximum}")

    def close(self, timeout: float = 0) -> None:
        self.calls.append("close")

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@pytest.mark.parametrize(
    ("size", "calls"), [({"workers": 3}, ["scale 3", "close"]), ({"adaptive": (2, 5)}, ["adapt 2 5", "close"])]
)
def test_kubernetes_clusters_are_sized_and_closed(monkeypatch: pytest.MonkeyPatch, size: Any, calls: list[str]) -> None:
    monkeypatch.setattr("dask_kubernetes.operator.KubeCluster", FakeCluster)
    with ExitStack() as stack:
        settings = {"image": "registry/dkgp:1"}
        options = ClusterOptions(kind="kubernetes", settings=settings, plain_text=True, **size)
        cluster = start_cluster(options, None, stack)
    assert cluster.calls == calls


# -------------------------------------------------------------------------------------------------------------- Gateway


class FakeGateway:
    """A gateway that offers two options, by the names that are usual."""

    cluster: FakeCluster

    def __init__(self, address: str | None = None, proxy_address: str | None = None, auth: str | None = None) -> None:
        self.address = address

    def __enter__(self) -> FakeGateway:
        return self

    def __exit__(self, *error: object) -> None: ...

    def cluster_options(self) -> dict[str, Any]:
        return {"worker_cores": 1, "worker_memory": 2.0}

    def new_cluster(self, **options: Any) -> FakeCluster:
        FakeGateway.cluster = FakeCluster(**options)
        return FakeGateway.cluster


def test_a_gateways_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    import dask_gateway

    monkeypatch.setattr(dask_gateway, "Gateway", FakeGateway)
    settings = {"address": "https://gateway", "shutdown_on_close": True}
    with ExitStack() as stack:
        start_cluster(ClusterOptions(kind="gateway", settings=settings, **SIZES), None, stack)
    assert FakeGateway.cluster.arguments == {"worker_cores": 4, "worker_memory": 8.0, "shutdown_on_close": True}
    assert FakeGateway.cluster.calls == ["scale 3", "close"]
    with ExitStack() as stack, pytest.raises(UsageError, match="has no setting 'image'. Known: .*worker_cores"):
        start_cluster(ClusterOptions(kind="gateway", settings={"image": "x"}, workers=1), None, stack)


def test_a_gateways_arguments_fit_its_classes() -> None:
    from dask_gateway import Gateway

    settings = {
        "address": "https://gateway",
        "proxy_address": "gateway://gateway:8786",
        "auth": "kerberos",
        "image": "x",
    }
    address, wanted = gateway_arguments(ClusterOptions(kind="gateway", workers=1, settings=settings), None)
    inspect.signature(Gateway).bind(**address)
    inspect.signature(Gateway.new_cluster).bind(None, **wanted)
    assert wanted == {"image": "x"}


def test_a_gateway_has_its_own_certificates(certificates: Certificates) -> None:
    with pytest.raises(UsageError, match="certificates of its own"):
        gateway_arguments(ClusterOptions(kind="gateway", **certificates.options()), None)
