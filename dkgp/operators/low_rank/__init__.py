"""A partial Cholesky factor of the kernel matrix, spread over the workers."""
