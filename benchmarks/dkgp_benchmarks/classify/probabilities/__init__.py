"""Classifiers whose probabilities count: dkgp's own, and rivals."""
