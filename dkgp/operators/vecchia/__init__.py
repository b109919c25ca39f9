"""A block-Vecchia factor of Kbar: a sparse triangle, leaf by leaf, that preconditions conjugate gradients."""
