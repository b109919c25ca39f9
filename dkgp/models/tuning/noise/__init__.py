"""Noise that depends on the inputs, found together with the kernel by the likelihood of a subset."""

# Hangs on dkgp/models/exact.py.
