from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """One S3 for all tests here, each of which has names of its own on it."""
    with s3_server() as running:
        yield running
