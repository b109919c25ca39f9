"""The sections of `dkgp bench`: their options, and the function that runs with them."""

# Hangs on dkgp/solvers/driver.py.
