"""The subcommands of `dkgp bench`."""
