"""An S3 server for tests: moto's, in a process of its own, on a free port of 127.0.0.1.

    with s3_server() as server:
        subprocess.run([sys.executable, "-m", "dkgp", ...], env=server.environment)  # a process of its own
        use_s3(monkeypatch, server)                                                  # or this one

The server stops when the block ends, and by itself when the test's process dies.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

__all__ = ["S3Server", "s3_server", "use_s3"]

# Real S3 decides a conditional put in one step; moto's threads look first and write later. One PUT at a time makes
# them as good as real. (The body is read before the lock is taken, so that a stuck client holds up nobody else.)
_SERVER = """
import io, sys, threading
from werkzeug.serving import make_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app

application = DomainDispatcherApplication(create_backend_app)
lock = threading.Lock()

def one_put_at_a_time(environ, start_response):
    if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
        return application(environ, start_response)
    if environ.get("CONTENT_LENGTH"):
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    with lock:
        return list(application(environ, start_response))

server = make_server("127.0.0.1", 0, one_put_at_a_time, threaded=True, request_handler=MotoRequestHandler)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes
    ----------
    endpoint
        `http://127.0.0.1:PORT`.
    bucket
        A bucket that exists, empty at the start.
    """

    endpoint: str
    bucket: str = "dkgp-test"

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables by which a process finds this server and no other account of the user's."""
        return {
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment for a dkgp process: this process's, with `settings`."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "FSSPEC_"))}
        return {**kept, **self.settings}

    def url(self, name: str) -> str:
        """The s3:// address of a name in the bucket."""
        return f"s3://{self.bucket}/{name}"


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """A moto server with an empty bucket; skips the test where moto is not installed."""
    pytest.importorskip("moto.server", reason="moto's server is not installed (pip install 'moto[s3,server]')")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the S3 server did not start"
        server = S3Server(f"http://127.0.0.1:{port}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(f"{server.endpoint}/{server.bucket}", method="PUT", data=b"")
        # moto tells services apart by the host's name or by the signature; this header is enough of one for S3.
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request")
        opener.open(request, timeout=240).close()
        yield server
    finally:
        process.kill()
        process.communicate()


def use_s3(monkeypatch: pytest.MonkeyPatch, server: S3Server) -> None:
    """Let this process work with `server`, for the test's duration."""
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'dkgp[s3]')")
    # fsspec keeps its file systems, and with them the address of the server before this one.
    s3fs.S3FileSystem.clear_instance_cache()
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    for name, text in server.settings.items():
        monkeypatch.setenv(name, text)
