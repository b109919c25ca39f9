"""The sections that these benchmarks add to `dkgp bench`, one in each module: options, and what is run with them."""
