"""Stores of linear regressions."""
