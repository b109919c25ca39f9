"""Evidence for dkgp: the experiments of the papers it follows, its rivals, and its proofs held against dense solutions.

Each chapter is a room, and one or two sections of `dkgp bench`, which `sections` declares:

- `variance`: predictive variances against Cholesky's, and two tables of the GBCD paper;
- `selection`, `growth`, `solvers`: a block's greedy choice, time as sizes grow, and how near `auto` comes to the best;
- `sparse`: sparse models beside the exact one and beside other libraries';
- `classify`, `certify`, `risk`: classifiers beside their rivals, their certificates, the minimisers of their risks;
- `pursuit`: the figures of the paper on sparse conjugate directions pursuit, and prototypes of a pool;
- `kriging`: kriging at size, beside PyKrige, GSTools and GPBoost;
- `papers`, `report`: the experiments of four papers, and a page of them with a verdict on each figure;
- `library`: the data sets that all of these name.
"""
