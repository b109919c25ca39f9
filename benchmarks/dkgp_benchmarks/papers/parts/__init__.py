"""The experiments of the papers, a module for each paper; `dkgp_benchmarks.papers.part` says what a part is."""
