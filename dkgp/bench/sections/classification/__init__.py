"""Sections of classifiers: their tables, their certificates, and the risks that they minimise."""
