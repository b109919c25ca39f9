"""The service's settings, certificate, private folder and token, and records by which commands find a service."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dkgp.cli import main
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError, UsageError
from dkgp.service import certificate as module
from dkgp.service.announcements import announce, find_service, private_token, read_private_token, require_private_folder
from dkgp.service.certificate import checked_certificate, own_certificate
from dkgp.service.serve import listen, run_serve
from dkgp.service.settings import ServiceSettings, check_token, is_loopback, read_token
from tests.cli.invoke import run_json
from tests.data.stores.references import knocks
from tests.service.process import service_here, service_process
from tests.service.stage import BEARER

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_token(tmp_path: Path, host: str) -> None:
    assert is_loopback(host)
    assert ServiceSettings(str(tmp_path), host=host, no_token=True).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "8.8.8.8"])
def test_nothing_else_is_bound_without_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match=r"everyone who can reach .* could use the service.*--host 127.0.0.1"):
        ServiceSettings(str(tmp_path), host=host, no_token=True)
    assert ServiceSettings(str(tmp_path), host=host, token=TOKEN, https=True).host == host
    assert ServiceSettings(str(tmp_path), host=host, plain_http=True).no_token is False


def test_a_token_and_none_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="both a token .* and --no-token"):
        ServiceSettings(str(tmp_path), token=TOKEN, no_token=True)


def test_unknown_host_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'no\.such\.host\.invalid' is no address"):
        ServiceSettings(str(tmp_path), host="no.such.host.invalid")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"port": 65536}, "65535.*got 65536"),
        ({"port": -1}, "got -1"),
        ({"concurrent_jobs": 0}, "concurrent jobs.*at least 1; got 0"),
        ({"max_queued": 0}, "queued jobs.*at least 1"),
        ({"max_body_bytes": 0}, "bytes of a request.*at least 1"),
        ({"job_deadline_seconds": 0.0}, "job deadline must be above 0"),
        ({"job_deadline_seconds": float("nan")}, "job deadline must be above 0"),
        ({"keep_seconds": -1.0}, "kept must be above 0"),
        ({"token": "short"}, "at least 16.*got 5 characters"),
        ({"token": "sixteen letters and spaces"}, "without spaces"),
        ({"token": "sixteen-letters-\N{LATIN SMALL LETTER E WITH ACUTE}"}, "printable ASCII"),
        ({"roots": ("relative/../..", "s3://")}, "empty, '.' or '..' part"),
        ({"roots": ("simplecache::s3://bucket/a",)}, "--root.*chains file systems"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, setting: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ServiceSettings(str(tmp_path), **setting)  # type: ignore[arg-type]


def test_roots_are_what_they_really_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path / "link")
    assert ServiceSettings("queue").roots == (str(real),)
    assert ServiceSettings("queue").folder == str(real / "queue")
    given = (str(tmp_path / "link"), str(real), "s3://bucket/runs/", "gcs://b")
    assert ServiceSettings("queue", roots=given).roots == (str(real), "s3://bucket/runs", "gs://b")
    with pytest.raises(InputError, match="'/no/such/folder' is not a folder"):
        ServiceSettings("queue", roots=("/no/such/folder",))


def test_the_token_is_not_shown(tmp_path: Path) -> None:
    assert TOKEN not in repr(ServiceSettings(str(tmp_path), token=TOKEN))
    with pytest.raises(UsageError) as caught:
        check_token("secret word", "the token")
    assert "secret word" not in str(caught.value)


def test_token_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}-file\n")
    file.chmod(0o640)
    environment = {"DKGP_SERVICE_TOKEN": f"{TOKEN}-environment"}
    assert read_token(file, environment) == f"{TOKEN}-file"
    assert read_token(None, environment) == f"{TOKEN}-environment"
    assert read_token(None, {}) is None
    assert read_token(None, {"DKGP_SERVICE_TOKEN": " "}) is None
    with pytest.raises(UsageError, match="the token in DKGP_SERVICE_TOKEN must be at least 16"):
        read_token(None, {"DKGP_SERVICE_TOKEN": "short"})


def test_token_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    with pytest.raises(InputError, match=r"read by every user .*mode 0644.*chmod 600"):
        read_token(file, {})
    for mode in (0o620, 0o602, 0o660):
        file.chmod(mode)
        with pytest.raises(InputError, match=rf"written by others \(mode {mode:04o}\).*chmod 600"):
            read_token(file, {})
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_token(tmp_path / "missing", {})
    with pytest.raises(InputError, match="is not a file"):
        read_token(tmp_path, {})
    file.chmod(0o600)
    file.write_bytes(os.urandom(5000))
    with pytest.raises(UsageError, match="larger than 4096 bytes"):
        read_token(file, {})
    file.write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(UsageError, match="printable ASCII"):
        read_token(file, {})
    file.write_text("")
    with pytest.raises(UsageError, match="got 0 characters"):
        read_token(file, {})


def test_its_own_is_made_once_and_is_private(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path, "127.0.0.1")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    made = certificate.read_bytes()
    assert own_certificate(tmp_path, "127.0.0.1")[0].read_bytes() == made
    # For another name, or after one that is damaged, or about to end, another one.
    assert own_certificate(tmp_path, "gp.example")[0].read_bytes() != made
    key.write_bytes(b"damaged")
    assert checked_certificate(*own_certificate(tmp_path, "gp.example"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["certificate-key.pem", "certificate.pem"]


def test_one_that_ends_soon_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALID_DAYS", module.RENEWED_DAYS)
    made = own_certificate(tmp_path, "localhost")[0].read_bytes()
    assert own_certificate(tmp_path, "localhost")[0].read_bytes() != made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Have both sides of a connection speak TLS; the client's error where it trusts not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "gp.example"])
def test_whoever_has_a_copy_trusts_it(tmp_path: Path, name: str, strict: bool) -> None:
    certificate, key = own_certificate(tmp_path, "gp.example")
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(certificate))
    server.load_cert_chain(certificate, key)
    if strict:
        # As Python 3.13 has it by default.
        client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    handshake(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server, client, "other.example")


def test_its_key_signs_no_other_name(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path, "127.0.0.1")
    authority = x509.load_pem_x509_certificate(certificate.read_bytes())
    stolen = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(stolen, ec.EllipticCurvePrivateKey)
    other = ec.generate_private_key(ec.SECP256R1())
    forged = (
        x509.CertificateBuilder(authority.subject, x509.Name([]), other.public_key(), x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("bank.example")]), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(stolen, hashes.SHA256())
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    content = forged.public_bytes(serialization.Encoding.PEM) + certificate.read_bytes()
    (tmp_path / "forged.pem").write_bytes(content + other.private_bytes(serialization.Encoding.PEM, *plain))
    for partial in (0, ssl.VERIFY_X509_PARTIAL_CHAIN):
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(certificate))
        server.load_cert_chain(tmp_path / "forged.pem")
        client.verify_flags |= partial
        with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
            handshake(server, client, "bank.example")


def test_an_authority_that_an_earlier_version_made_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        constraints = x509.BasicConstraints
        patch.setattr(x509, "BasicConstraints", lambda ca, path_length: constraints(True, 0))
        earlier = own_certificate(tmp_path, "localhost")[0].read_bytes()
    certificate, _ = own_certificate(tmp_path, "localhost")
    assert certificate.read_bytes() != earlier
    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n"])
def test_what_is_no_certificate_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.pem").write_bytes(content)
    with pytest.raises(InputError, match=r"certificate cannot be used .*c\.pem"):
        checked_certificate(tmp_path / "c.pem", None)
    with pytest.raises(InputError, match=r"certificate cannot be used .*missing\.pem"):
        checked_certificate(tmp_path / "missing.pem", None)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    certificate, _ = own_certificate(tmp_path / "one", "localhost")
    _, key = own_certificate(tmp_path / "two", "localhost")
    with pytest.raises(InputError, match="belonging to the"):
        checked_certificate(certificate, key)


def test_plain_http_beyond_this_machine_has_to_be_asked_for(tmp_path: Path) -> None:
    token, folder = "a-token-for-these-tests-alone", str(tmp_path)
    with pytest.raises(UsageError, match="--https .*--plain-http"):
        ServiceSettings(folder, host="0.0.0.0", token=token)
    for tls in ({"https": True}, {"https_cert": "c.pem"}, {"plain_http": True}):
        assert ServiceSettings(folder, host="0.0.0.0", token=token, **tls).speaks_tls == ("plain_http" not in tls)
    assert not ServiceSettings(folder, token=token).speaks_tls
    with pytest.raises(UsageError, match="leave one of them out"):
        ServiceSettings(folder, token=token, https=True, plain_http=True)
    with pytest.raises(UsageError, match="got both --https .* and --https-cert"):
        ServiceSettings(folder, token=token, https=True, https_cert="c.pem")
    with pytest.raises(UsageError, match="without --https-cert"):
        ServiceSettings(folder, token=token, https_key="k.pem")


@pytest.mark.long
def test_a_service_with_tls_is_trusted_by_its_users_commands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with service_process(tmp_path / "queue", tmp_path, "--https", token=None) as service:
        assert service.url.startswith("https://127.0.0.1:")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            service.client.get("/healthz")
        context = ssl.create_default_context(cafile=str(tmp_path / "queue" / "certificate.pem"))
        with httpx.Client(base_url=service.url, verify=context, trust_env=False, timeout=240) as client:
            assert client.get("/healthz").json() == {"status": "ok"}
            assert client.get("/v1/jobs", headers=BEARER).status_code == 401
        with pytest.raises(httpx.HTTPError):
            httpx.get(service.url.replace("https", "http") + "/healthz", trust_env=False, timeout=240)
        for options in ((), ("--service", service.url)):
            assert "jobs" in run_json("jobs", *options)
        code, _, err = service.stop()
    assert code == 0
    assert "SSL_CERT_FILE=" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_service_with_tls_starts_again_with_the_certificate_that_it_has_made(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir(0o700)
    made = own_certificate(tmp_path / "queue", "127.0.0.1")[0].read_bytes()
    with service_process(tmp_path / "queue", tmp_path, "--https") as service:
        assert service.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(tmp_path / "queue" / "certificate.pem"))
        assert httpx.get(f"{service.url}/healthz", verify=context, trust_env=False, timeout=240).status_code == 200
        assert service.stop()[0] == 0
    assert (tmp_path / "queue" / "certificate.pem").read_bytes() == made


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's state folder, with no services of other tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("DKGP_SERVICE_URL", "DKGP_SERVICE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state" / "dkgp" / "services"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (tmp_path / "queue").mkdir()
    private_token(tmp_path / "queue")
    return tmp_path / "queue" / "token"


def test_a_service_is_found_where_it_listens_and_nowhere_else(token_file: Path, state: Path) -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        announcement = announce(listener, token_file)
        (record,) = state.iterdir()
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        assert token_file.read_text().strip() not in record.read_text()
        for url in (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/", f"http://localhost:{port}", None):
            found = find_service(url)
            assert found is not None, url
            # A name may lead elsewhere, on the way of another address family too.
            assert found.url == f"http://127.0.0.1:{port}"
            assert found.token() == token_file.read_text().strip()
        for url in (
            f"http://127.0.0.1:{port + 1}",
            f"http://127.0.0.2:{port}",
            f"http://[::1]:{port}",
            f"https://127.0.0.1:{port}",
            f"http://127.0.0.1:{port}/elsewhere",
            f"http://127.0.0.1.example.org:{port}",
            f"http://example.org:{port}",
            f"http://localhost.example.org:{port}",
            "http://127.0.0.1",
            "http://127.0.0.1:port",
            "nonsense",
        ):
            assert find_service(url) is None, url
        announcement.withdraw()
        assert list(state.iterdir()) == []
        assert find_service(None) is None
        assert not found.is_there()


def test_a_service_at_all_addresses_is_found_on_this_machine(token_file: Path) -> None:
    with listen("0.0.0.0", 0) as listener:
        port = listener.getsockname()[1]
        announcement = announce(listener, token_file)
        for url in (f"http://127.0.0.1:{port}", f"http://localhost:{port}", None):
            found = find_service(url)
            assert found.url == f"http://127.0.0.1:{port}"
        assert find_service(f"http://192.0.2.1:{port}") is None
        announcement.withdraw()


def test_of_several_services_one_has_to_be_named(token_file: Path) -> None:
    with listen("127.0.0.1", 0) as one, listen("127.0.0.1", 0) as other:
        kept = [announce(one, token_file), announce(other, token_file)]
        assert find_service(None) is None
        assert find_service(f"http://127.0.0.1:{one.getsockname()[1]}") is not None
        for announcement in kept:
            announcement.withdraw()


def test_a_record_is_not_trusted_where_others_could_have_written_it(
    token_file: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listen("127.0.0.1", 0) as listener:
        announcement = announce(listener, token_file)
        (record,) = state.iterdir()
        assert find_service(None) is not None
        for path in (record, state):
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | stat.S_IWOTH)
            assert find_service(None) is None
            path.chmod(mode)
        # Homes are shared between machines, on each of which 127.0.0.1 is another.
        with monkeypatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: "another")
            assert find_service(None) is None
        assert find_service(None) is not None
        announcement.withdraw()


SERVE = """
import sys, time
from pathlib import Path
from dkgp.service.announcements import announce
from dkgp.service.serve import listen
listener = listen("127.0.0.1", int(sys.argv[1]))
announcement = announce(listener, Path(sys.argv[2]))
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_the_token_does_not_go_to_who_listens_where_a_service_was_killed(token_file: Path, state: Path) -> None:
    """Its record stays behind; another user takes the port, and waits for commands."""
    process = subprocess.Popen([sys.executable, "-c", SERVE, "0", str(token_file)], stdout=subprocess.PIPE, text=True)
    port = int(process.stdout.readline())
    found = find_service(None)
    assert found.url == f"http://127.0.0.1:{port}"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(state.iterdir())) == 1
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", port)) as squatter:
        squatter.settimeout(0.2)
        assert find_service(f"http://127.0.0.1:{port}") is None
        # A command that was following the service when it died does not tell the squatter either.
        from dkgp.errors import ServiceError
        from dkgp.service.client import ServiceClient

        client = ServiceClient(found.url, token=found.token(), retry_seconds=0.0, is_there=found.is_there)
        with client, pytest.raises(ServiceError, match="the service has ended"):
            client.service()
        with pytest.raises(TimeoutError):
            heard.append(squatter.accept()[0].recv(4096))
    assert heard == []


# ------------------------------------------------------------------------------------------------------ the commands


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def assert_no_way_in(url: str, token_file: Path) -> None:
    """For another user of this machine, with all that uid 65534 can read."""
    script = f"""
import urllib.error, urllib.request
try:
    print(open({str(token_file)!r}).read())
except OSError as error:
    print(type(error).__name__)
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open({url!r} + "/v1/jobs").status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
    answer = subprocess.run(
        ["/usr/bin/env", "python3", "-c", script], user=65534, group=65534, capture_output=True, text=True, cwd="/",
        timeout=240,
    )  # fmt: skip
    assert answer.stdout.split() == ["PermissionError", "401"], answer.stderr


def test_serve_then_submit_by_the_same_user_just_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any port, by hand or by default; for another user there is no way in, and no token on the way."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.zarr").mkdir()
    with service_here(ServiceSettings("queue", port=0)) as url:
        token = (tmp_path / "queue" / "token").read_text().strip()
        assert stat.S_IMODE((tmp_path / "queue" / "token").stat().st_mode) == 0o600
        ways: list[tuple[str, ...]] = [(), ("--service", url), ("--service", url.replace("127.0.0.1", "localhost"))]
        for number, options in enumerate(ways):
            result = command("submit", *options, "tune", "no.zarr", "--out", f"hyper-{number}.json")
            assert result.exit_code == 0, result.stderr
            assert result.stdout.strip()
        assert command("jobs").exit_code == 0
        # Somebody else's commands, and whoever does not show the token.
        with monkeypatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(tmp_path / "of-another-user"))
            refused = command("submit", "--service", url, "tune", "no.zarr", "--out", "hyper.json")
            assert refused.exit_code == 2
            assert "--token-file" in refused.stderr
            assert command("jobs", "--service", url, "--token-file", tmp_path / "queue" / "token").exit_code == 0
        # An address that is not the service's gets no token, although it is of this machine.
        with knocks() as inner:
            tried = command("jobs", "--service", f"http://127.0.0.1:{inner.port}", "--retry", 0)
            assert tried.exit_code != 0
        if os.geteuid() == 0:  # only root can be somebody else
            assert_no_way_in(url, tmp_path / "queue" / "token")
    # The next start finds the same token.
    assert private_token(tmp_path / "queue") == token


def test_no_token_has_to_be_said(tmp_path: Path, state: Path) -> None:
    settings = ServiceSettings(str(tmp_path / "queue"), port=0, no_token=True, roots=(str(tmp_path),))
    with service_here(settings) as url:
        assert not (tmp_path / "queue" / "token").exists()
        assert not state.exists()
        assert command("jobs", "--service", url).exit_code == 0


def test_a_new_folder_is_closed_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        require_private_folder(tmp_path / "below" / "queue")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "below" / "queue").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o2770, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "queue"
    folder.mkdir()
    folder.chmod(mode)
    settings = ServiceSettings(str(folder), port=0, roots=(str(tmp_path),))
    with pytest.raises(InputError, match=rf"other users can write to the folder .*{mode:04o}.*chmod 700"):
        run_serve(settings, SilentReporter())
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "queue"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(InputError, match="belongs to another user .*Name a folder of your own with --folder"):
        run_serve(ServiceSettings(str(folder), port=0, roots=(str(tmp_path),)), SilentReporter())
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_that_was_given_away_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(InputError, match="uid 65534"):
        require_private_folder(folder)


def test_a_link_is_followed_once(tmp_path: Path) -> None:
    """Its target is checked and used, even if the link points elsewhere later."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert ServiceSettings(str(tmp_path / "link"), roots=(str(tmp_path),)).folder == str(tmp_path / "real")


def test_the_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with ThreadPoolExecutor(8) as pool:
            tokens = set(pool.map(lambda _: private_token(tmp_path), range(32)))
    finally:
        os.umask(before)
    assert len(tokens) == 1
    assert len(tokens.pop()) >= 43
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_tokens_of_two_folders_differ(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(private_token(tmp_path / name))
    assert made[0] != made[1]


def test_a_token_that_was_planted_or_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="cannot be read"):
        private_token(tmp_path)
    token.unlink()
    os.mkfifo(token, 0o600)
    with pytest.raises(InputError, match="belongs to another user, or is no file"):
        private_token(tmp_path)
    token.unlink()
    token.write_text("short\n")
    token.chmod(0o640)
    with pytest.raises(
        InputError, match=r"can be read by other users \(mode 0640\); remove it and start `dkgp serve` again"
    ):
        private_token(tmp_path)
    token.chmod(0o600)
    with pytest.raises(UsageError, match="at least 16"):
        private_token(tmp_path)
    token.write_text("a-token-of-somebody-elses\n")
    assert read_private_token(token) == "a-token-of-somebody-elses"
    monkeypatch.setattr(os, "geteuid", lambda: token.stat().st_uid + 1)
    with pytest.raises(InputError, match="belongs to another user, or is no file"):
        read_private_token(token)
