"""Linear regressions with few nonzero weights: paths of a pursuit or its rivals, and the cardinality to stop at."""

# Hangs on dkgp/models/exact.py.
