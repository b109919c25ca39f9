"""Files and arrays of other origin, read in bounded memory into dataset stores; synthetic problems."""

# Hangs on dkgp/models/exact.py.
