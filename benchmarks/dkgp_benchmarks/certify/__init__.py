"""Certified labels and intervals of exact classifiers, counted against dense solutions."""
