"""Kriging: points to maps, in the words of geostatistics, over the engine for exact Gaussian processes."""

# Hangs on dkgp/models/certificate.py.
