"""Kriging: points to maps, in the words of geostatistics, over the engine for exact Gaussian processes."""

# Hangs on dkgp/models/certificate.py.

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
