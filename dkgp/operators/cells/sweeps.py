# ruff: noqa
"""Compiled sweeps of a product by cells: moments up, translations across, expansions down, and entries of near cells."""

from __future__ import annotations

import numpy as np
from numba import njit

from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.tiles.loops import call_entry_stage
from dkgp.kernels.vector_math import FAST_MATH, prefer_full_vectors


@njit(nogil=True, forceinline=True)
def _cheb_rows(y, start, stop, level, coord, l, p, T):
    scale, shift = 2.0 ** (level + 1), 2.0 * coord + 1.0
    for i in range(stop - start):
        x = y[start + i, l] * scale - shift
        a, b = 1.0, x
        T[0, i] = 1.0
        for k in range(1, p):
            T[k, i] = b
            a, b = b, 2.0 * x * b - a


@cached_njit(nogil=True)
def p2m(y, v, leaf_start, leaf_stop, leaf_cell, leaf_level, leaf_coord, p, M, absv):
    d = y.shape[1]
    for k in range(leaf_start.shape[0]):
        s, e, c = leaf_start[k], leaf_stop[k], leaf_cell[k]
        m = e - s
        Tx, Ty = np.empty((p, m)), np.empty((p, m))
        _cheb_rows(y, s, e, leaf_level[k], leaf_coord[k, 0], 0, p, Tx)
        _cheb_rows(y, s, e, leaf_level[k], leaf_coord[k, 1], 1, p, Ty)
        total = 0.0
        for i in range(m):
            total += abs(v[s + i])
            for a in range(p):
                Tx[a, i] *= v[s + i]
        absv[c] = total
        if d == 2:
            M[c] = np.dot(Tx, Ty.T).reshape(p * p)
        else:
            Tz, YZ = np.empty((p, m)), np.empty((p * p, m))
            _cheb_rows(y, s, e, leaf_level[k], leaf_coord[k, 2], 2, p, Tz)
            for a in range(p):
                for b in range(p):
                    for i in range(m):
                        YZ[a * p + b, i] = Ty[a, i] * Tz[b, i]
            M[c] = np.dot(Tx, YZ.T).reshape(p * p * p)


@cached_njit(nogil=True)
def m2m(first, count, coord, at, at_child, halves, d, p, M, absv):
    for c in range(first.shape[0]):
        for u in range(count[c]):
            ch = first[c] + u
            B0, B1 = halves[coord[ch, 0] & 1], halves[coord[ch, 1] & 1]
            if d == 2:
                m = M[at_child + ch].copy().reshape(p, p)
                M[at + c] += np.dot(np.dot(B0, m), B1.T).copy().reshape(p * p)
            else:
                B2 = halves[coord[ch, 2] & 1]
                m = np.dot(B0, M[at_child + ch].copy().reshape(p, p * p)).copy()
                for a in range(p):
                    r = np.dot(np.dot(B1, m[a].copy().reshape(p, p)), B2.T)
                    M[at + c, a * p * p : (a + 1) * p * p] += r.copy().reshape(p * p)
            absv[at + c] += absv[at_child + ch]


@cached_njit(nogil=True)
def l2l(first, count, coord, at, at_child, halves, d, p, L, bound):
    for c in range(first.shape[0]):
        for u in range(count[c]):
            ch = first[c] + u
            B0, B1 = halves[coord[ch, 0] & 1], halves[coord[ch, 1] & 1]
            if d == 2:
                m = L[at + c].copy().reshape(p, p)
                L[at_child + ch] += np.dot(np.dot(B0.T, m), B1).copy().reshape(p * p)
            else:
                B2 = halves[coord[ch, 2] & 1]
                m = np.dot(B0.T, L[at + c].copy().reshape(p, p * p)).copy()
                for a in range(p):
                    r = np.dot(np.dot(B1.T, m[a].copy().reshape(p, p)), B2)
                    L[at_child + ch, a * p * p : (a + 1) * p * p] += r.copy().reshape(p * p)
            bound[at_child + ch] += bound[at + c]


@cached_njit(nogil=True)
def l2p(y, leaf_start, leaf_stop, leaf_cell, leaf_level, leaf_coord, p, L, out):
    d = y.shape[1]
    for k in range(leaf_start.shape[0]):
        s, e, c = leaf_start[k], leaf_stop[k], leaf_cell[k]
        m = e - s
        Tx, Ty = np.empty((p, m)), np.empty((p, m))
        _cheb_rows(y, s, e, leaf_level[k], leaf_coord[k, 0], 0, p, Tx)
        _cheb_rows(y, s, e, leaf_level[k], leaf_coord[k, 1], 1, p, Ty)
        if d == 2:
            R = np.dot(L[c].copy().reshape(p, p), Ty)
        else:
            Tz, YZ = np.empty((p, m)), np.empty((p * p, m))
            _cheb_rows(y, s, e, leaf_level[k], leaf_coord[k, 2], 2, p, Tz)
            for a in range(p):
                for b in range(p):
                    for i in range(m):
                        YZ[a * p + b, i] = Ty[a, i] * Tz[b, i]
            R = np.dot(L[c].copy().reshape(p, p * p), YZ)
        for a in range(p):
            for i in range(m):
                out[s + i] += Tx[a, i] * R[a, i]


@cached_njit(nogil=True)
def shell_sums(M, shell, p):
    out = np.zeros((M.shape[0], p))
    for c in range(M.shape[0]):
        for k in range(M.shape[1]):
            out[c, shell[k]] += abs(M[c, k])
    return out


@cached_njit(nogil=True)
def m2l(A, B, tr, bstart, bcls, bptr, ps, d, op, op_ptr, idx, idxM, sgn, w, rem, M, S, absv, L, bound):
    for blk in range(bptr.shape[0] - 1):
        for b in range(bptr[blk], bptr[blk + 1]):
            c = bcls[b]
            q = ps[c] ** d
            s, e = bstart[b], bstart[b + 1]
            X = np.empty((e - s, q))
            for r in range(s, e):
                row, t = M[B[r]], tr[r]
                for k in range(q):
                    X[r - s, k] = sgn[t, c, k] * row[idxM[t, c, k]]
            Y = np.dot(X, op[op_ptr[c] : op_ptr[c + 1]].reshape(q, q))
            for r in range(s, e):
                t, a = tr[r], A[r]
                for k in range(q):
                    L[a, idx[t, c, k]] += sgn[t, c, k] * Y[r - s, k]
                x = rem[c] * absv[B[r]]
                for k in range(S.shape[1]):
                    x += w[c, k] * S[B[r], k]
                bound[a] += x


RUN = 16


@cached_njit(nogil=True, fastmath=FAST_MATH)
def p2p(stage, program, txyz, sxyz, v, leaf_start, leaf_stop, ptr, ss, se, out, near_mass):
    prefer_full_vectors()
    d = txyz.shape[0]
    for k in range(leaf_start.shape[0]):
        s0, m = leaf_start[k], leaf_stop[k] - leaf_start[k]
        acc, part = np.zeros(m), np.zeros(m)
        buf = np.empty((1, m * RUN))
        mass = 0.0
        for r in range(ptr[k], ptr[k + 1]):
            for j0 in range(ss[r], se[r], RUN):
                j1 = min(j0 + RUN, se[r])
                size = m * (j1 - j0)
                for j in range(j0, j1):
                    base = (j - j0) * m
                    mass += abs(v[j])
                    x = sxyz[0, j]
                    for i in range(m):
                        a = txyz[0, s0 + i] - x
                        buf[0, base + i] = -(a * a)
                    for f in range(1, d):
                        x = sxyz[f, j]
                        for i in range(m):
                            a = txyz[f, s0 + i] - x
                            buf[0, base + i] -= a * a
                call_entry_stage(stage, buf, 0, m * RUN, 1, size, program, 0)
                part[:] = 0.0
                for j in range(j0, j1):
                    w, base = v[j], (j - j0) * m
                    for i in range(m):
                        part[i] += w * buf[0, base + i]
                for i in range(m):
                    acc[i] += part[i]
        near_mass[k] = mass
        for i in range(m):
            out[s0 + i] += acc[i]
