# ruff: noqa
"""Trees of cells: points in [0, 1)^d in Morton order, cut into 2^d children a cell until few points are left."""

from __future__ import annotations

import numpy as np

from dkgp.kernels.tiles.code_cache import cached_njit


@cached_njit(nogil=True)
def _interleave(y, bits):
    n, d = y.shape
    code = np.zeros(n, np.int64)
    scale = 2.0**bits
    for i in range(n):
        c = 0
        for l in range(d):
            q = min(int(y[i, l] * scale), (1 << bits) - 1)
            for b in range(bits):
                c |= ((q >> b) & 1) << (b * d + l)
        code[i] = c
    return code


@cached_njit(nogil=True)
def _split(start, stop, coord, leaf, code, shift, d):
    """Children of the cells that are no leaves."""
    n = start.shape[0]
    m = 1 << d
    cap = 0
    for c in range(n):
        if not leaf[c]:
            cap += m
    cs, ce, cc, cp = (
        np.empty(cap, np.int64),
        np.empty(cap, np.int64),
        np.empty((cap, d), np.int64),
        np.empty(cap, np.int64),
    )
    first, count = np.full(n, -1, np.int64), np.zeros(n, np.int64)
    k = 0
    for c in range(n):
        if leaf[c]:
            continue
        first[c] = k
        i = start[c]
        while i < stop[c]:
            key = code[i] >> shift
            lo, hi = i, stop[c]
            while lo < hi:
                mid = (lo + hi) // 2
                if (code[mid] >> shift) > key:
                    hi = mid
                else:
                    lo = mid + 1
            cs[k], ce[k], cp[k] = i, lo, c
            for l in range(d):
                cc[k, l] = 2 * coord[c, l] + ((key >> l) & 1)
            k += 1
            count[c] += 1
            i = lo
    return cs[:k].copy(), ce[:k].copy(), cc[:k].copy(), cp[:k].copy(), first, count


class Tree:
    """Cells of points y (n, d): at most `leaf` points each, or `bits` levels deep."""

    def __init__(self, y, leaf, bits):
        n, self.d = y.shape
        code = _interleave(y, bits)
        self.order = np.argsort(code, kind="stable")
        code = code[self.order]
        self.y = np.ascontiguousarray(y[self.order])
        d = self.d
        self.levels = []
        start, stop, coord = np.zeros(1, np.int64), np.array([n]), np.zeros((1, d), np.int64)
        parent = np.full(1, -1, np.int64)
        for l in range(bits + 1):
            is_leaf = (stop - start <= leaf) | (l == bits)
            level = dict(start=start, stop=stop, coord=coord, leaf=is_leaf, parent=parent)
            cs, ce, cc, cp, first, count = _split(
                start, stop, coord, is_leaf, code, d * (bits - l - 1) if l < bits else 0, d
            )
            level["first"], level["count"] = first, count
            self.levels.append(level)
            if is_leaf.all():
                break
            start, stop, coord, parent = cs, ce, cc, cp
        self.n_cells = sum(len(v["start"]) for v in self.levels)
        offs = np.cumsum([0] + [len(v["start"]) for v in self.levels])
        self.at = offs
        # all leaves, by their first point
        ls = np.concatenate([v["start"][v["leaf"]] for v in self.levels])
        le = np.concatenate([v["stop"][v["leaf"]] for v in self.levels])
        lc = np.concatenate([np.flatnonzero(v["leaf"]) + offs[l] for l, v in enumerate(self.levels)])
        ll = np.concatenate([np.full(int(v["leaf"].sum()), l) for l, v in enumerate(self.levels)])
        o = np.argsort(ls, kind="stable")
        self.leaf_start, self.leaf_stop, self.leaf_cell, self.leaf_level = ls[o], le[o], lc[o], ll[o]
        self.leaf_coord = np.concatenate([v["coord"][v["leaf"]] for v in self.levels])[o]


@cached_njit(nogil=True)
def expand_pairs(A, B, firstA, countA, firstB, countB):
    m = 0
    for i in range(A.shape[0]):
        m += countA[A[i]] * countB[B[i]]
    a, b = np.empty(m, np.int64), np.empty(m, np.int64)
    k = 0
    for i in range(A.shape[0]):
        for u in range(countA[A[i]]):
            for v in range(countB[B[i]]):
                a[k], b[k] = firstA[A[i]] + u, firstB[B[i]] + v
                k += 1
    return a, b


@cached_njit(nogil=True)
def near_lists(a_start, a_stop, b_start, b_stop, leaf_start):
    """Of pairs of ranges, for each leaf that the first covers, the second: CSR."""
    n = leaf_start.shape[0]
    count = np.zeros(n + 1, np.int64)
    first = np.searchsorted(leaf_start, a_start)
    last = np.searchsorted(leaf_start, a_stop)
    for i in range(a_start.shape[0]):
        for k in range(first[i], last[i]):
            count[k + 1] += 1
    ptr = np.cumsum(count)
    at = ptr[:-1].copy()
    s, e = np.empty(ptr[-1], np.int64), np.empty(ptr[-1], np.int64)
    for i in range(a_start.shape[0]):
        for k in range(first[i], last[i]):
            s[at[k]], e[at[k]] = b_start[i], b_stop[i]
            at[k] += 1
    # sorted by place, and joined where one follows the other
    new = np.zeros(n + 1, np.int64)
    k2 = 0
    for k in range(n):
        o = np.argsort(s[ptr[k] : ptr[k + 1]])
        ss, ee = s[ptr[k] : ptr[k + 1]][o], e[ptr[k] : ptr[k + 1]][o]
        m0 = k2
        for j in range(ss.shape[0]):
            if k2 > m0 and e[k2 - 1] == ss[j]:
                e[k2 - 1] = ee[j]
            else:
                s[k2], e[k2] = ss[j], ee[j]
                k2 += 1
        new[k + 1] = k2
    return new, s[:k2].copy(), e[:k2].copy()
