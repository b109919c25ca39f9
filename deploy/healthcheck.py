#!/usr/bin/env python3
"""Tell Docker whether this container is well: its process answers the address in DKGP_HEALTH_URL.

One image has all roles, and only who starts it knows which one it plays: a scheduler and a worker answer /health on
their dashboard's port, `dkgp serve` answers /healthz on its own. A container without the variable runs one command
and is well as long as that runs.
"""

from __future__ import annotations

import os
import sys
import urllib.request

TIMEOUT_SECONDS = 5.0


def main() -> int:
    """Return 0 where the address answers, or none is set; 1 with the reason on standard error."""
    url = os.environ.get("DKGP_HEALTH_URL")
    if not url:
        return 0
    # A proxy in the environment is for the world outside, not for this container's own ports.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS):
            return 0
    except (OSError, ValueError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
