"""`python -m dkgp`, the same as `dkgp`."""

from __future__ import annotations

from dkgp.cli.group import main

if __name__ == "__main__":
    main(prog_name="dkgp")
