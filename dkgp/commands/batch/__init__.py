"""Batch scripts of queueing systems that run a command of dkgp."""
