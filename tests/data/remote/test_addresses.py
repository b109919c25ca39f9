"""Addresses: no secret in one gets into a message, an exception or a store."""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dkgp.data import ingest, open_dataset
from dkgp.data.remote.addresses import is_local, join, normalise_url, scrubbed, shown
from dkgp.data.remote.storage import exists
from dkgp.errors import DkgpError, InputError

SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIA:{SECRET}@bucket/x.zarr",
        f"s3://AKIA:{SECRET}/K7@bucket/x.zarr",
        f"s3://{SECRET}@bucket/x.zarr",
        f"gs://user:{SECRET}@bucket/x.zarr",
        f"https://user:{SECRET}@host/x.csv",
        f"https://{SECRET}@host/x.csv",
        f"abfs://container:{SECRET}@account/x.zarr",
        f"ftp://user:{SECRET}@host/x.csv",
        f"simplecache::s3://AKIA:{SECRET}@bucket/x.csv",
        f"s3://bucket/x.zarr?X-Amz-Signature={SECRET}",
        f"az://container/x.zarr?sig={SECRET}&se=2027",
        f"s3://bucket/x.zarr?aws_secret_access_key={SECRET}",
    ],
)
@pytest.mark.parametrize("action", [normalise_url, exists, open_dataset, is_local, lambda url: join(url, "a")])
def test_a_url_with_credentials_is_refused_without_repeating_them(url: str, action: Callable[[str], object]) -> None:
    with pytest.raises(InputError, match=r"Got an address .* with credentials in it") as caught:
        action(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/x.zarr",
        "s3://bucket/a@b/x:y.zarr",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name/x.zarr",
        "s3://bucket/part-?.csv",
        "abfs://container@account.dfs.core.windows.net/x.zarr",
        "http://host:8080/x.csv",
        "http://[::1]:8080/x.csv",
        "ssh://user@host/x.csv",
        "memory://x.zarr",
    ],
)
def test_a_url_without_credentials_stays_as_it_is(url: str) -> None:
    assert normalise_url(url) == url
    assert shown(url) == url


def test_what_is_shown_of_a_presigned_address() -> None:
    url = f"https://host/x.csv?X-Amz-Signature={SECRET}"
    assert shown(url) == "https://host/x.csv?..."
    assert SECRET not in scrubbed(f"403 for url '{url}' and https://u:{SECRET}@host/")


@pytest.fixture
def web() -> Iterator[tuple[str, dict[str, Any]]]:
    """A web server that gives one file to whoever has the token, and what it is to answer."""
    answer: dict[str, Any] = {"status": 200, "content": b""}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = f"X-Amz-Signature={SECRET}" in self.path
            content = answer["content"] if allowed and answer["status"] == 200 else b"no"
            self.send_response(answer["status"] if allowed else 403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/data.csv?X-Amz-Signature={SECRET}", answer
    server.shutdown()
    server.server_close()


def test_a_presigned_source_is_read_and_not_remembered(web: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    url, answer = web
    answer["content"] = b"a,y\n1,2\n3,5\n4,7\n"
    report = ingest(url, tmp_path / "d.zarr", target="y")
    assert report.train.n_samples == 3
    assert SECRET not in json.dumps(report.to_json())
    for path in (tmp_path / "d.zarr").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("status", "content"),
    [(403, b""), (404, b""), (200, b""), (200, b"a,y\n1,2\n3\n"), (200, b"a,y\n1,2\nx,3\n"), (200, b"PK\x03\x04junk")],
)
def test_no_error_about_a_presigned_source_shows_its_token(
    web: tuple[str, dict[str, Any]], tmp_path: Path, status: int, content: bytes
) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    url, answer = web
    answer.update(status=status, content=content)
    with pytest.raises(DkgpError) as caught:
        ingest(url, tmp_path / "d.zarr", target="y")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    link: BaseException | None = caught.value
    while link is not None:
        assert SECRET not in str(link)
        link = link.__cause__ or link.__context__
    assert not (tmp_path / "d.zarr").exists()


@pytest.mark.parametrize(
    "url", ["reference://?fo=refs.json", "reference::s3://bucket/refs.json", "simplecache::reference://a"]
)
def test_references_to_other_places_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of the kind 'reference', whose file names other places"):
        ingest(url, tmp_path / "d.zarr", target="y")
    assert normalise_url(tmp_path / "reference") == str(tmp_path / "reference")
