"""Encrypted connections to clusters that were found and that were started, and what is said where there are none."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import pytest

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.starters.security import plain_text_warning, secure_address, security_from
from dkgp.errors import InputError, UsageError
from tests.cluster.helpers import Certificates, Listener, StartProcess, make_certificates, start_scheduler


def doubled(group: list[int]) -> list[int]:
    return [2 * item for item in group]


@pytest.mark.slow
def test_a_scheduler_and_a_worker_with_certificates(
    certificates: Certificates, start_process: StartProcess, tmp_path: Path
) -> None:
    address = start_scheduler(start_process, tmp_path, *certificates.arguments())
    assert address.startswith("tls://")
    start_process(
        "dask", "worker", address, "--nthreads", "2", "--no-dashboard", "--no-nanny", "--host", "tls://127.0.0.1",
        *certificates.arguments(),
    )  # fmt: skip
    listener = Listener()
    with open_executor(ClusterOptions(scheduler=address, **certificates.options()), 1, listener) as executor:
        assert executor.parallelism == 2
        assert executor.submit("t", doubled, (), [[1], [2]]).result() == [2, 4]
    assert listener.warnings == []
    # The same certificates from dask's configuration, and the address without its protocol.
    configured = {"ca-file": certificates.ca, "client": {"cert": certificates.cert, "key": certificates.key}}
    by_file = ClusterOptions(scheduler_file=str(tmp_path / "scheduler.json"))
    tls = {**dask.config.get("distributed.comm.tls"), **configured}
    with dask.config.set({"distributed.comm.tls": tls}), open_executor(by_file, 1) as executor:
        assert executor.submit("t", doubled, (), [[3]]).result() == [6]
    bare = address.removeprefix("tls://")
    with open_executor(ClusterOptions(scheduler=bare, **certificates.options()), 1) as executor:
        assert executor.parallelism == 2
    # Without certificates, with those of another authority, and in plain text.
    with pytest.raises(UsageError, match="takes encrypted connections, and no certificates were given"):
        open_executor(ClusterOptions(scheduler=address), 1).__enter__()
    others = make_certificates(tmp_path / "others")
    strangers = ClusterOptions(scheduler=address, connect_timeout_seconds=3.0, **others.options())
    with pytest.raises(InputError, match="must come from the same authority"):
        open_executor(strangers, 1).__enter__()
    plain = ClusterOptions(scheduler=f"tcp://{bare}", connect_timeout_seconds=3.0)
    with pytest.raises(InputError, match="its address begins with tls://"):
        open_executor(plain, 1).__enter__()


@pytest.mark.long
def test_a_cluster_started_with_certificates_is_encrypted(certificates: Certificates) -> None:
    options = ClusterOptions(kind="processes", workers=1, threads_per_worker=1, **certificates.options())
    listener = Listener()
    with open_executor(options, 1, listener) as executor:
        client = executor._client  # type: ignore[attr-defined]
        assert client.scheduler.address.startswith("tls://127.0.0.1")
        assert all(address.startswith("tls://") for address in client.nthreads())
        assert executor.submit("t", doubled, (), [[1]]).result() == [2]
    assert listener.warnings == []


@pytest.mark.long
def test_strangers_cannot_reach_a_cluster_that_was_started_here(tmp_path: Path) -> None:
    """Nobody gave certificates: without the run's own there is no way to the scheduler, a nanny or a worker."""
    from distributed import Security

    with open_executor(ClusterOptions(kind="processes", workers=1, threads_per_worker=1), 1) as executor:
        client = executor._client  # type: ignore[attr-defined]
        scheduler = client.scheduler.address
        workers = client.scheduler_info()["workers"]
        addresses = [scheduler, *workers, *(worker["nanny"] for worker in workers.values())]
        assert all(address.startswith("tls://127.0.0.1:") for address in addresses)
        others = make_certificates(tmp_path).options()
        strangers = {
            "without certificates": Security(),
            "with those of another run": Security.temporary(),
            "with those of an authority": security_from(ClusterOptions(**others)),
        }
        for name, security in strangers.items():
            for address in addresses:
                assert not lets_in(address, security), f"{address} lets in who comes {name}"
        for address in addresses:
            assert lets_in(address, client.security, 120.0)
            assert answer_to_plain_text(address.removeprefix("tls://")) in (b"", TLS_ALERT)
        # The run itself goes on, and its scheduler still takes what comes with its certificates.
        assert executor.submit("t", doubled, (), [[1]]).result() == [2]


def lets_in(address: str, security: Any, seconds: float = 2.0) -> bool:
    """Whether a connection is made and dask's handshake answered."""
    from distributed.comm.core import connect

    async def shake_hands() -> None:
        comm = await connect(address, timeout=seconds, **security.get_connection_args("client"))
        await comm.close()

    try:
        asyncio.run(asyncio.wait_for(shake_hands(), 2.0 * seconds))
    except (OSError, RuntimeError, TypeError):
        return False
    return True


TLS_ALERT = b"\x15\x03"


def answer_to_plain_text(address: str) -> bytes:
    """The first two bytes that come back to dask's own greeting, sent as it is; none where the port is closed on it."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=240) as connection:
        connection.sendall((1).to_bytes(8, "little") + (64).to_bytes(8, "little") + b"x" * 64)
        with suppress(ConnectionError):
            return connection.recv(2)
    return b""


def test_plain_text_has_to_be_asked_for(certificates: Certificates) -> None:
    from dkgp.cluster.starters.security import security_for_start

    for kind in ("processes", "slurm", "pbs", "lsf", "ssh"):
        made = security_for_start(ClusterOptions(kind=kind))  # type: ignore[arg-type]
        assert made is not None
        assert made.require_encryption is True
        configured = {"ca-file": certificates.ca, "client": {"cert": certificates.cert, "key": certificates.key}}
        with dask.config.set({"distributed.comm.tls": {**dask.config.get("distributed.comm.tls"), **configured}}):
            found = security_for_start(ClusterOptions(kind=kind))  # type: ignore[arg-type]
            assert found is not None
            assert found.tls_ca_file == certificates.ca
            assert security_for_start(ClusterOptions(kind=kind, plain_text=True)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_ca": "a", "tls_cert": "b"}, "both certificates and `plain_text`"),
        ({"scheduler": "tcp://host:1"}, "`plain_text` goes with a cluster that is started here"),
        ({"kind": "gateway"}, "a gateway brings certificates of its own"),
    ],
)
def test_plain_text_where_it_makes_no_sense(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ClusterOptions(plain_text=True, **given)


# --------------------------------------------------------------------------------------------------------- certificates


def test_no_certificates_anywhere() -> None:
    assert security_from(ClusterOptions()) is None


def test_certificates_rule_out_plain_text_and_serve_all_roles(certificates: Certificates) -> None:
    security = security_from(ClusterOptions(**certificates.options()))
    assert security is not None
    assert security.require_encryption is True
    for role in ("client", "scheduler", "worker"):
        found = security.get_tls_config_for_role(role)
        assert (found["ca_file"], found["cert"], found["key"]) == (certificates.ca, certificates.cert, certificates.key)


def test_a_key_in_the_certificates_file_and_relative_paths(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are started elsewhere: in another folder, by a command line that names a key."""
    (tmp_path / "both.pem").write_text(Path(certificates.cert).read_text() + Path(certificates.key).read_text())
    monkeypatch.chdir(tmp_path)
    security = security_from(ClusterOptions(tls_ca=certificates.ca, tls_cert="both.pem"))
    assert security is not None
    assert security.tls_worker_cert == security.tls_worker_key == str(tmp_path / "both.pem")


@pytest.mark.parametrize("option", ["tls_ca", "tls_cert", "tls_key"])
def test_a_missing_file_is_named(certificates: Certificates, option: str) -> None:
    given = {**certificates.options(), option: "/nowhere/x.pem"}
    with pytest.raises(InputError, match=f"`{option}`: there is no file '/nowhere/x.pem'"):
        security_from(ClusterOptions(**given))


@pytest.mark.parametrize("option", ["tls_ca", "tls_cert", "tls_key"])
def test_a_file_that_is_something_else_is_not_shown(certificates: Certificates, tmp_path: Path, option: str) -> None:
    path = tmp_path / "wrong.pem"
    path.write_text("hunter2")
    with pytest.raises(InputError, match="the certificates cannot be used") as caught:
        security_from(ClusterOptions(**{**certificates.options(), option: str(path)}))
    assert str(path) in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_key_with_a_password_is_refused_instead_of_asked_for(certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(InputError, match="the key is encrypted"):
        security_from(ClusterOptions(**{**certificates.options(), "tls_key": str(path)}))


def test_another_certificates_key(certificates: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    with pytest.raises(InputError, match=r"cannot be used \(KEY_VALUES_MISMATCH\)"):
        security_from(ClusterOptions(**{**certificates.options(), "tls_key": other.key}))


# ----------------------------------------------------------------------------------------------------------- addresses


def test_protocols_and_certificates_go_together(certificates: Certificates) -> None:
    security = security_from(ClusterOptions(**certificates.options()))
    assert secure_address("host:1", None) == "host:1"
    assert secure_address("tcp://host:1", None) == "tcp://host:1"
    assert secure_address("host:1", security) == "tls://host:1"
    assert secure_address("tls://host:1", security) == "tls://host:1"
    with pytest.raises(UsageError, match="Write tls://host:1 where"):
        secure_address("tcp://host:1", security)
    with pytest.raises(UsageError, match="no certificates were given"):
        secure_address("tls://host:1", None)


@pytest.mark.parametrize(
    ("address", "warns"),
    [
        ("tcp://127.0.0.1:8786", False),
        ("127.0.0.1:8786", False),
        ("tcp://localhost:8786", False),
        ("tcp://[::1]:8786", False),
        ("inproc://10.0.0.7/1/2", False),
        ("tls://10.0.0.7:8786", False),
        ("gateway://gateway:8786/x", False),
        ("tcp://10.0.0.7:8786", True),
        ("10.0.0.7:8786", True),
        ("tcp://[fd00::7]:8786", True),
        ("ws://10.0.0.7:8786", True),
        ("tcp://no-such-host.invalid:8786", True),
    ],
)
def test_plain_text_beyond_this_machine_is_warned_of(address: str, warns: bool) -> None:
    warning = plain_text_warning(address)
    assert (warning is not None) == warns
    if warning is not None:
        assert address in warning
        assert "`tls_ca`" in warning


def test_the_warning_is_given_once(monkeypatch: pytest.MonkeyPatch, start_cluster: Any) -> None:
    own = start_cluster(processes=False, protocol="tcp")
    monkeypatch.setattr("dkgp.cluster.starters.security._is_loopback", lambda host: False)
    listener = Listener()
    with open_executor(ClusterOptions(scheduler=own.scheduler.address), 1, listener):
        pass
    assert len(listener.warnings) == 1
    assert "neither encrypted nor authenticated" in listener.warnings[0]
