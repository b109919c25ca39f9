"""Kriging at size, beside PyKrige, GSTools and GPBoost."""
