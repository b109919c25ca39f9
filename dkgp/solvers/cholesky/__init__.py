"""Cholesky factors: dense blocks, the whole matrix in memory, and tiles on disk."""
