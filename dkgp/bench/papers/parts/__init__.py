"""The experiments of the papers, a module for each paper; `dkgp.bench.papers.part` says what a part is."""
