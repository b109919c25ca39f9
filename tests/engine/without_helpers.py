"""dkgp's command line in a process that compiles all that it needs by itself."""

from __future__ import annotations

from dkgp.cli import main
from dkgp.models import warm_up

if __name__ == "__main__":
    warm_up._MOST_HELPERS = 0
    main()
