#!/usr/bin/env python3
"""Make the bucket, and a user of the store who may read and write it and nothing else.

    make-bucket.py BUCKET [USER_CREDENTIALS]

The store's own keys (the profile in AWS_SHARED_CREDENTIALS_FILE) do this, and go to no other container. The user's keys
are in the profile of USER_CREDENTIALS. The user is made by RustFS's administration interface, whose path is in
DKGP_STORE_ADMIN; where there is none, as with a store whose users are made by other means, the bucket alone is made.
Repeating it changes nothing.
"""

from __future__ import annotations

import configparser
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

TIMEOUT_SECONDS = 30.0


def policy(bucket: str) -> dict[str, Any]:
    """Return what dkgp does with a bucket, as a policy: it lists, reads, writes and removes objects."""
    place = f"arn:aws:s3:::{bucket}"
    of_bucket = ["s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads"]
    of_objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    of_parts = ["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": of_bucket, "Resource": [place]},
            {"Effect": "Allow", "Action": [*of_objects, *of_parts], "Resource": [f"{place}/*"]},
        ],
    }


def keys(path: str) -> tuple[str, str]:
    """Return the access key and the secret key of a profile."""
    profile = configparser.ConfigParser()
    profile.read(path, encoding="utf-8")
    return profile["default"]["aws_access_key_id"], profile["default"]["aws_secret_access_key"]


def ask(call: str, query: dict[str, str], body: dict[str, Any] | None = None) -> None:
    """Make one signed call of the administration interface."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    endpoint, place = os.environ["AWS_ENDPOINT_URL"].rstrip("/"), os.environ["DKGP_STORE_ADMIN"]
    url = f"{endpoint}{place}/{call}?{urllib.parse.urlencode(query)}"
    content = b"" if body is None else json.dumps(body).encode()
    request = AWSRequest("PUT", url, data=content, headers={"Content-Type": "application/json"})
    credentials = Credentials(*keys(os.environ["AWS_SHARED_CREDENTIALS_FILE"]))
    SigV4Auth(credentials, "s3", os.environ.get("AWS_DEFAULT_REGION", "us-east-1")).add_auth(request)
    signed = urllib.request.Request(url, data=content, headers=dict(request.headers.items()), method="PUT")
    # A proxy in the environment is for the world outside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(signed, timeout=TIMEOUT_SECONDS):
        pass


def main(arguments: list[str]) -> int:
    """Make both; return 1, with the reason on standard error, where the store refuses."""
    import s3fs

    bucket, *user = arguments
    s3fs.S3FileSystem().makedirs(bucket, exist_ok=True)
    if not user or not os.environ.get("DKGP_STORE_ADMIN"):
        return 0
    access_key, secret_key = keys(user[0])
    name = f"dkgp-{bucket}"
    try:
        ask("add-canned-policy", {"name": name}, policy(bucket))
        ask("add-user", {"accessKey": access_key}, {"secretKey": secret_key, "status": "enabled"})
        ask("set-user-or-group-policy", {"policyName": name, "userOrGroup": access_key, "isGroup": "false"})
    except urllib.error.URLError as error:
        print(f"the store's user for the bucket '{bucket}' could not be made: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
