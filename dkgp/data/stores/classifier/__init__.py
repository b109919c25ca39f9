"""Stores of classifiers."""
