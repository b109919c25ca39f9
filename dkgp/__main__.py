"""`python -m dkgp`, the same as `dkgp`."""

from __future__ import annotations

from dkgp.commands.signals import held_signals


def main() -> None:
    """Import the commands and run the one that the command line names."""
    with held_signals():
        from dkgp.cli import main as run
        from dkgp.limits import count_start_up

        count_start_up()
        run(prog_name="dkgp")


if __name__ == "__main__":
    main()
