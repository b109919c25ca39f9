"""Stores of sparse models."""
