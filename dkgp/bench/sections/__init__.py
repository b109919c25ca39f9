"""The sections of `dkgp bench`, one in each module: options, and what is run with them."""

# Hangs on dkgp/solvers/driver.py.
