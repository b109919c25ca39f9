"""A block-Vecchia factor of Kbar: a sparse triangle in float32, leaf by leaf, that conjugate gradients are preconditioned by."""
