"""Clusters that dkgp starts for a run, and the certificates with which they talk."""

# Hangs on dkgp/cluster/executors/base.py.
