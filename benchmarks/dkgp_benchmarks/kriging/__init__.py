"""Kriging at size, beside PyKrige, GSTools and GPBoost: a module run as `python -m dkgp_benchmarks.kriging`."""
