# ruff: noqa
"""Plans of products by cells: trees, accepted pairs of cells with proven errors, and lists of near cells."""

from __future__ import annotations

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.kernels.tiles.stages import stage_address
from dkgp.operators.cells.proof import Expansion, shells
from dkgp.operators.cells.roundings import HIGHEST, Roundings, displacement, half_table
from dkgp.operators.cells.sweeps import RUN, l2l, l2p, m2l, m2m, p2m, p2p, shell_sums
from dkgp.operators.cells.tree import Tree, expand_pairs, near_lists

# Entries below this power of two are not evaluated exactly; see `dkgp.kernels.tiles.encoding`.
LOWEST_EXPONENT = -960.0


def scaled_inputs(term, inputs):
    """Inputs (n, d) of a term in the units of its profile; a single feature lies in a plane."""
    rows = np.asarray(inputs, np.float64)[:, list(term.features)] * np.array(term.scale)
    return rows if rows.shape[1] > 1 else np.column_stack([rows, np.zeros(len(rows))])


class Plan:
    """Trees, accepted pairs with their proven errors, near lists: everything but the weights."""

    def __init__(self, term, inputs, tolerance, targets=None, *, leaf=64, block=128, extra=4):
        X = scaled_inputs(term, inputs)
        targets = None if targets is None else scaled_inputs(term, targets)
        tol = tolerance
        self.term, self.d, self.tol = term, X.shape[1], tol
        d = self.d
        both = X if targets is None else np.concatenate([X, targets])
        lo = both.min(0)
        S = float((both.max(0) - lo).max()) * (1 + 1e-9) + 1e-300
        self.S = S  # side of the root in the profile's units
        bits = 12 if d == 2 else 9
        self.src = Tree((X - lo) / S, leaf, bits)
        self.tgt = self.src if targets is None else Tree((targets - lo) / S, leaf, bits)
        self.classes = {}
        nl = min(len(self.src.levels), len(self.tgt.levels))
        A, B = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.m2l, self.skips, near = [], [], []
        self.far_evals = 0
        ring = 6**d - 3**d
        for l in range(nl):
            ta, sb = self.tgt.levels[l], self.src.levels[l]
            side = self.S / 2**l
            o = ta["coord"][A] - sb["coord"][B]
            R = int(np.abs(o).max(initial=0))
            width = 2 * R + 1
            key = np.zeros(len(A), np.int64)
            for j in range(d):
                key = key * width + (o[:, j] + R)
            present = np.flatnonzero(np.bincount(key, minlength=width**d))
            mass = min(1.0, ring / 2 ** (d * l))
            tol_l = tol / 4 * max(1.0, 1.0 / mass)
            order = np.full(width**d, -1, np.int64)
            offs, info = {}, []
            for kk in present:
                off = []
                r = int(kk)
                for j in range(d):
                    off.append(r % width - R)
                    r //= width
                off = tuple(off[::-1])
                canon = tuple(sorted((abs(v) for v in off), reverse=True))
                if (l, canon) not in self.classes:
                    with single_threaded_blas():
                        self.classes[l, canon] = Expansion(term.profile, term.parameter, side, canon, tol_l)
                p = self.classes[l, canon].order
                order[kk] = p
                offs[int(kk)] = (off, canon, p)
            po = order[key]
            far = po >= 1
            zero = po == 0
            if zero.any():
                self.skips.append((l, A[zero], B[zero], key[zero], offs))
            if far.any():
                self._add_level(l, A[far], B[far], key[far], offs, block)
            rest = ~(far | zero)
            A, B = A[rest], B[rest]
            stop_here = ta["leaf"][A] | sb["leaf"][B] | (l == nl - 1)
            if stop_here.any():
                a, b = A[stop_here], B[stop_here]
                near.append((ta["start"][a], ta["stop"][a], sb["start"][b], sb["stop"][b]))
            A, B = A[~stop_here], B[~stop_here]
            if not len(A):
                break
            A, B = expand_pairs(A, B, ta["first"], ta["count"], sb["first"], sb["count"])
        self.pm = max([1] + [m["pmax"] for m in self.m2l])
        self.pmM = min(self.pm + extra, HIGHEST)
        largest = float(np.abs(both).max())
        self.roundings = Roundings(
            d=d,
            orders=self.pm,
            moments=self.pmM,
            leaf=int((self.src.leaf_stop - self.src.leaf_start).max()),
            source_levels=len(self.src.levels),
            target_levels=len(self.tgt.levels),
            displacement=displacement(largest, S, d),
        )
        for m in self.m2l:
            self._maps(m)
        self.skips = [self._skipped(*skip) for skip in self.skips]
        if near:
            cols = [np.concatenate(c) for c in zip(*near)]
        else:
            cols = [np.zeros(0, np.int64)] * 4
        self.near_ptr, self.near_s, self.near_e = near_lists(*cols, self.tgt.leaf_start)
        sizes = self.near_e - self.near_s
        per = np.add.reduceat(np.append(sizes, 0), np.minimum(self.near_ptr[:-1], len(sizes))) * (
            self.near_ptr[1:] > self.near_ptr[:-1]
        )
        # Runs of 16, one after the other.
        runs = np.add.reduceat(np.append(-(-sizes // RUN), 0), np.minimum(self.near_ptr[:-1], len(sizes)))
        self.near_additions = int(RUN + runs.max(initial=0))
        self.near_entries = int((per * (self.tgt.leaf_stop - self.tgt.leaf_start)).sum())
        self._prepare()

    def _add_level(self, l, A, B, key, offs, block):
        d = self.d
        canons, transforms = {}, {}
        cls_of, tr_of = {}, {}
        for kk, (off, canon, p) in offs.items():
            if p < 1:
                continue
            cid = canons.setdefault(canon, len(canons))
            perm = tuple(sorted(range(d), key=lambda j: -abs(off[j])))
            sign = tuple(-1 if off[j] < 0 else 1 for j in range(d))
            tid = transforms.setdefault((perm, sign), len(transforms))
            cls_of[kk], tr_of[kk] = cid, tid
        size = max(offs) + 1
        ca, ta = np.full(size, -1), np.full(size, -1)
        for kk in cls_of:
            ca[kk], ta[kk] = cls_of[kk], tr_of[kk]
        c, t = ca[key], ta[key]
        blk = A // block
        o = np.argsort((blk * len(canons) + c) * 1, kind="stable")
        A, B, c, t, blk = A[o], B[o], c[o], t[o], blk[o]
        comb = blk * len(canons) + c
        batch = np.flatnonzero(np.r_[True, comb[1:] != comb[:-1]])
        bstart = np.append(batch, len(A))
        bcls = c[batch]
        bblk = blk[batch]
        nblk = int(blk.max()) + 1
        bptr = np.searchsorted(bblk, np.arange(nblk + 1))
        ps = [self.classes[l, canon].order for canon in canons]
        ops = [self.classes[l, canon].operator for canon in canons]
        self.far_evals += int(
            sum((np.array(ps) ** d)[c] * (self.tgt.levels[l]["stop"] - self.tgt.levels[l]["start"])[A])
        )
        flops = int((2 * np.array(ps, float) ** (2 * d))[c].sum())
        self.m2l.append(
            dict(
                l=l,
                A=A,
                B=B,
                t=t,
                bstart=bstart,
                bcls=bcls,
                bptr=bptr,
                ps=np.array(ps),
                ops=ops,
                transforms=list(transforms),
                pmax=max(ps),
                flops=flops,
                canons=list(canons),
            )
        )

    def _skipped(self, l, A, B, key, offs):
        """Pairs that are left out, and what each costs."""
        e = np.zeros(max(offs) + 1)
        for kk, (_, canon, p) in offs.items():
            if p == 0:
                e[kk] = self.classes[l, canon].left_out(self.term.profile, self.term.parameter, self.roundings)
        return l, A, B, e[key]

    def _maps(self, m):
        """For each transform and p, where a canonical index lies in an array of pm^d, and its sign."""
        d, pm = self.d, self.pm
        nt, pmx = len(m["transforms"]), m["pmax"]
        q = pmx**d
        idx, sgn = np.zeros((nt, len(m["ps"]), q), np.int64), np.ones((nt, len(m["ps"]), q))
        for ti, (perm, sign) in enumerate(m["transforms"]):
            for ci, p in enumerate(m["ps"]):
                k = np.indices((p,) * d).reshape(d, -1)
                orig = np.empty_like(k)
                s = np.ones(k.shape[1])
                for j in range(d):
                    orig[perm[j]] = k[j]
                    if sign[perm[j]] < 0:
                        s = s * (1 - 2 * (k[j] % 2))
                flat = np.zeros(k.shape[1], np.int64)
                for j in range(d):
                    flat = flat * pm + orig[j]
                idx[ti, ci, : len(flat)], sgn[ti, ci, : len(flat)] = flat, s
        m["idx"], m["sgn"] = idx, sgn
        m["idxM"] = np.zeros_like(idx)
        for ti, (perm, sign) in enumerate(m["transforms"]):
            for ci, p in enumerate(m["ps"]):
                k = np.indices((p,) * d).reshape(d, -1)
                orig = np.empty_like(k)
                for j in range(d):
                    orig[perm[j]] = k[j]
                flat = np.zeros(k.shape[1], np.int64)
                for j in range(d):
                    flat = flat * self.pmM + orig[j]
                m["idxM"][ti, ci, : len(flat)] = flat
        additions = int(np.bincount(m["A"]).max())
        bounds = [
            self.classes[m["l"], canon].row_weights(
                self.term.profile, self.term.parameter, self.roundings, m["l"], additions
            )
            for canon in m["canons"]
        ]
        m["w"] = np.array([weights for weights, _ in bounds])
        m["rem"] = np.array([remainder for _, remainder in bounds])
        ptr = np.cumsum([0] + [op.size for op in m["ops"]])
        m["op"], m["op_ptr"] = np.concatenate([op.ravel() for op in m["ops"]]), ptr
        del m["ops"]

    def _prepare(self):
        self.src_xyz = np.ascontiguousarray((self.src.y * self.S).T)
        self.tgt_xyz = self.src_xyz if self.tgt is self.src else np.ascontiguousarray((self.tgt.y * self.S).T)
        self.halves = half_table(self.pm)
        self.halvesM = half_table(self.pmM)
        # Parameters of the entry stage: the profile's, and the floor of its exponent.
        numbers = (*self.term.parameters, 0.0, 0.0)[:2]
        self.program = np.array([[*numbers, LOWEST_EXPONENT]]).view(np.int64)

    @property
    def flops(self):
        """Floating-point operations of all translations."""
        return sum(m["flops"] for m in self.m2l)

    @property
    def nbytes(self):
        total = 0
        for m in self.m2l:
            total += sum(v.nbytes for v in m.values() if isinstance(v, np.ndarray))
        total += self.near_s.nbytes * 2 + self.near_ptr.nbytes
        for tree in {id(self.src): self.src, id(self.tgt): self.tgt}.values():
            total += tree.y.nbytes + tree.order.nbytes + sum(sum(a.nbytes for a in v.values()) for v in tree.levels)
        return total

    @property
    def work_bytes(self):
        return 8 * self.pm**self.d * (self.src.n_cells + self.tgt.n_cells)

    def __call__(self, v):
        """K v and a proven bound for every entry (in the targets' order)."""
        d, pm = self.d, self.pm
        src, tgt = self.src, self.tgt
        vs = np.ascontiguousarray(v[src.order])
        pmM = self.pmM
        M = np.zeros((src.n_cells, pmM**d))
        absv = np.zeros(src.n_cells)
        if self.m2l or self.skips:
            p2m(src.y, vs, src.leaf_start, src.leaf_stop, src.leaf_cell, src.leaf_level, src.leaf_coord, pmM, M, absv)
            for l in range(len(src.levels) - 2, -1, -1):
                v_ = src.levels[l]
                m2m(
                    v_["first"],
                    v_["count"],
                    src.levels[l + 1]["coord"],
                    src.at[l],
                    src.at[l + 1],
                    self.halvesM,
                    d,
                    pmM,
                    M,
                    absv,
                )
        S = shell_sums(M, shells(pmM, d), pmM)
        L = np.zeros((tgt.n_cells, pm**d))
        bound = np.zeros(tgt.n_cells)
        for m in self.m2l:
            m2l(
                m["A"] + tgt.at[m["l"]],
                m["B"] + src.at[m["l"]],
                m["t"],
                m["bstart"],
                m["bcls"],
                m["bptr"],
                m["ps"],
                d,
                m["op"],
                m["op_ptr"],
                m["idx"],
                m["idxM"],
                m["sgn"],
                m["w"],
                m["rem"],
                M,
                S,
                absv,
                L,
                bound,
            )
        for l, A, B, e in self.skips:
            np.add.at(bound, A + tgt.at[l], e * absv[B + src.at[l]])
        for l in range(len(tgt.levels) - 1):
            v_ = tgt.levels[l]
            l2l(
                v_["first"],
                v_["count"],
                tgt.levels[l + 1]["coord"],
                tgt.at[l],
                tgt.at[l + 1],
                self.halves,
                d,
                pm,
                L,
                bound,
            )
        out = np.zeros(len(tgt.y))
        l2p(tgt.y, tgt.leaf_start, tgt.leaf_stop, tgt.leaf_cell, tgt.leaf_level, tgt.leaf_coord, pm, L, out)
        near_mass = np.zeros(len(tgt.leaf_start))
        p2p(
            stage_address(self.term.profile.name, np.float64),
            self.program,
            self.tgt_xyz,
            self.src_xyz,
            vs,
            tgt.leaf_start,
            tgt.leaf_stop,
            self.near_ptr,
            self.near_s,
            self.near_e,
            out,
            near_mass,
        )
        near = self.roundings.near_error(self.term.profile, self.term.parameter, self.near_additions)
        per_leaf = (bound[tgt.leaf_cell] + near * near_mass) * (1 + 1e-9)
        result, rows = np.empty(len(out)), np.empty(len(out))
        result[tgt.order] = out
        rows[tgt.order] = np.repeat(per_leaf, tgt.leaf_stop - tgt.leaf_start)
        return result, rows
