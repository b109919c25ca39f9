"""Compiled sweeps of a product by cells: moments up, translations across, expansions down, and entries of near cells.

Each function works on a range of cells or leaves, releases the GIL and writes to the places of that range alone. The
order of every sum depends on the plan and not on the range, so results have the same bits however cells are cut into
ranges. All arithmetic is of fused multiply-adds over one inner index (`dkgp.kernels.small_products`).

Coefficients of a cell lie one weight column after the other: (cells * columns, p^d), flat.
"""

from __future__ import annotations

import numpy as np

from dkgp.kernels.compiler import cached_njit, njit
from dkgp.kernels.small_products import LANES, set_product
from dkgp.kernels.tiles.loops import call_entry_stage
from dkgp.kernels.vector_math import FAST_MATH, fma, prefer_full_vectors

# Points that are taken together, rows of a translation, target cells whose pairs are sorted by class together, and
# sources and targets whose entries are evaluated together.
CHUNK, ROWS, BLOCK, RUN, TARGETS = 128, 64, 128, 16, 256
# Rows of the gathered coefficients lie apart by this: a power of two would meet the same places of the cache.
_APART = ROWS + LANES


@cached_njit(nogil=True)
def column_sums(V):  # type: ignore[no-untyped-def]
    """Sums of the columns of V and of their magnitudes, (2, t), each to a rounding: sums keep their remainders."""
    out = np.zeros((2, V.shape[1]))
    for j in range(V.shape[1]):
        for k in range(2):
            total, remainder = 0.0, 0.0
            for i in range(V.shape[0]):
                value = abs(V[i, j]) if k else V[i, j]
                summed = total + value
                part = summed - total
                remainder += (total - (summed - part)) + (value - part)
                total = summed
            out[k, j] = total + remainder
    return out


@njit(nogil=True, forceinline=True, no_cpython_wrapper=True)
def whole_vectors(count):  # type: ignore[no-untyped-def]
    """Return the count, rounded up to whole vectors."""
    return -(-count // LANES) * LANES


@njit(nogil=True, forceinline=True, no_cpython_wrapper=True)
def _chebyshev(y, feature, start, count, scale, shift, p, T, at, apart):  # type: ignore[no-untyped-def]
    """T[at + k apart + i] = T_k(scale y - shift), k < p, for `count` points from `start`."""
    for i in range(count):
        T[at + i] = 1.0
    if p > 1:
        for i in range(count):
            T[at + apart + i] = y[feature, start + i] * scale - shift
    for k in range(2, p):
        here = at + k * apart
        for i in range(count):
            x = T[at + apart + i]
            T[here + i] = fma(x + x, T[here - apart + i], -T[here - apart - apart + i])


@cached_njit(nogil=True)
def leaf_moments(  # type: ignore[no-untyped-def]
    first, last, y, v, leaf_start, leaf_stop, leaf_cell, leaf_scale, leaf_coord, p, M, mass
):
    """Moments sum_j v_j T_b(u_j) of leaves from `first` up to `last`, and sums of |v_j|: `mass` (cells, columns)."""
    prefer_full_vectors()
    d, t = y.shape[0], v.shape[1]
    inner, outer = p if d < 3 else p * p, p if d > 1 else 1
    width, none, apart = whole_vectors(inner), np.int64(0), np.int64(CHUNK)
    T = np.empty(d * p * CHUNK)
    weighted, columns = np.empty(t * outer * CHUNK), np.zeros(CHUNK * width)
    C = np.empty(t * outer * width)
    for k in range(first, last):
        cell, scale = leaf_cell[k], leaf_scale[k]
        at = cell * t * outer * inner
        for j in range(t):
            mass[cell, j] = 0.0
        for m in range(t * outer * inner):
            M[at + m] = 0.0
        for start in range(leaf_start[k], leaf_stop[k], CHUNK):
            count = min(CHUNK, leaf_stop[k] - start)
            for f in range(d):
                _chebyshev(y, f, start, count, scale, 2.0 * leaf_coord[k, f] + 1.0, p, T, f * p * CHUNK, CHUNK)
            if d < 3:
                for b in range(p):
                    for i in range(count):
                        columns[i * width + b] = T[((d - 1) * p + b) * CHUNK + i]
            else:
                for i in range(count):
                    for b in range(p):
                        for c in range(p):
                            columns[i * width + b * p + c] = T[(p + b) * CHUNK + i] * T[(2 * p + c) * CHUNK + i]
            for j in range(t):
                for i in range(count):
                    mass[cell, j] += abs(v[start + i, j])
                for a in range(outer):
                    for i in range(count):
                        factor = v[start + i, j]
                        weighted[(j * outer + a) * CHUNK + i] = factor * T[a * CHUNK + i] if d > 1 else factor
            set_product(C, none, width, t * outer, width, weighted, none, 1, apart, columns, none, width, count)
            for r in range(t * outer):
                for m in range(inner):
                    M[at + r * inner + m] += C[r * width + m]


@cached_njit(nogil=True, no_cpython_wrapper=True)
def _shift(values, at, table, sides, p, d, first, second, out):  # type: ignore[no-untyped-def]
    """Map coefficients by one p-by-p table a feature to `out`, whose rows lie whole vectors apart."""
    width, none = whole_vectors(p), np.int64(0)
    size = p * width
    if d == 1:
        set_product(out, none, width, np.int64(1), width, values, at, 1, p, table, sides[0] * size, width, p)
    elif d == 2:
        set_product(first, none, width, p, width, table, sides[0] * size, width, 1, values, at, p, p)
        set_product(out, none, width, p, width, first, none, 1, width, table, sides[1] * size, width, p)
    else:
        wide = whole_vectors(p * p)
        set_product(first, none, wide, p, wide, table, sides[0] * size, width, 1, values, at, p * p, p)
        for a in range(p):
            set_product(second, a * size, width, p, width, table, sides[1] * size, width, 1, first, a * wide, p, p)
        set_product(out, none, width, p * p, width, second, none, 1, width, table, sides[2] * size, width, p)


@cached_njit(nogil=True)
def merge_moments(first, last, child, children, coord, at, below, up, d, p, t, M, mass):  # type: ignore[no-untyped-def]
    """Moments of a level's cells from `first` up to `last` from those of their children; leaves have none.

    `at` and `below` are the numbers of the first cells of the level and of the next one, whose coordinates are `coord`.
    """
    width = whole_vectors(p)
    rows = p ** (d - 1)
    size = rows * p
    one, two, out = np.zeros(rows * width + size + 64), np.zeros(rows * width + LANES), np.zeros(rows * width)
    sides = np.zeros(3, np.int64)
    for c in range(first, last):
        if children[c] == 0:
            continue
        for j in range(t):
            total, base = 0.0, ((at + c) * t + j) * size
            for m in range(size):
                M[base + m] = 0.0
            for k in range(children[c]):
                here = child[c] + k
                for f in range(d):
                    sides[f] = coord[here, f] & 1
                _shift(M, ((below + here) * t + j) * size, up, sides, p, d, one, two, out)
                total += mass[below + here, j]
                for r in range(rows):
                    for b in range(p):
                        M[base + r * p + b] += out[r * width + b]
            mass[at + c, j] = total


@cached_njit(nogil=True)
def group_sums(first, last, M, groups, count, out):  # type: ignore[no-untyped-def]
    """Sums of the magnitudes of moments of the same of `count` `groups`, of rows from `first` up to `last`."""
    size = groups.shape[0]
    for row in range(first, last):
        for k in range(count):
            out[row, k] = 0.0
        for m in range(size):
            out[row, groups[m]] += abs(M[row * size + m])


@cached_njit(nogil=True)
def split_expansions(  # type: ignore[no-untyped-def]
    first, last, child, children, coord, above, below, stop, down, d, p, t, L, bound, L_below, bound_below
):
    """Add the expansions of a level's cells, from `first` up to `last`, to their children's, `below` up to `stop`.

    Rows of `L` begin with the cell `above`, those of `L_below` with the child `below`.
    """
    width = whole_vectors(p)
    rows = p ** (d - 1)
    count = rows * p
    one, two, out = np.zeros(rows * width + count + 64), np.zeros(rows * width + LANES), np.zeros(rows * width)
    sides = np.zeros(3, np.int64)
    for c in range(first, last):
        for k in range(children[c]):
            here = child[c] + k
            if here < below or here >= stop:
                continue
            for f in range(d):
                sides[f] = coord[here, f] & 1
            for j in range(t):
                row, to = (c - above) * t + j, (here - below) * t + j
                _shift(L, row * count, down, sides, p, d, one, two, out)
                for r in range(rows):
                    for b in range(p):
                        L_below[to * count + r * p + b] += out[r * width + b]
                bound_below[to] += bound[row]


@cached_njit(nogil=True)
def translate(  # type: ignore[no-untyped-def]
    first, last, pairs, sources, keys, transforms, counts, operators, operators_at, places, source_places, signs,
    weights, remainder, M, S, mass, at, t, full, source_full, L, bound,
):  # fmt: skip
    """Add to the expansions of cells from `first` up to `last` those of the moments of their accepted source cells.

    Pairs of target cell c lie from `pairs[c]` up to `pairs[c + 1]`: the `sources`' numbers within their level, and
    `keys`, class * `transforms` + transform. Class c keeps `counts[c]` coefficients (none: the pair is left out). Of
    each class and transform, one after the other, these lie at `places` of `full` ones of a target, and at
    `source_places` of `source_full` ones of a source, with `signs`. `operators` are (count, whole vectors), from
    `operators_at[c]` on. `weights` (classes, groups) times the sums of groups `S` and `remainder` times the `mass`
    bound a pair's error. Rows of L and bound begin with `first`.
    """
    prefer_full_vectors()
    classes, groups = weights.shape
    none, apart = np.int64(0), np.int64(_APART)
    most = 0
    for block in range(first, last, BLOCK):
        most = max(most, pairs[min(block + BLOCK, last)] - pairs[block])
    place = np.zeros(classes * transforms + 1, np.int64)
    targets, wanted = np.empty(most, np.int64), np.empty(most, np.int64)
    largest, tables = 0, np.zeros(classes, np.int64)
    for c in range(classes):
        largest = max(largest, counts[c])
        tables[c] = 0 if c == 0 else tables[c - 1] + transforms * counts[c - 1]
    X, Y = np.empty(largest * _APART), np.empty(ROWS * whole_vectors(largest))
    shape, from_row, to_row = np.empty(ROWS, np.int64), np.empty(ROWS, np.int64), np.empty(ROWS, np.int64)
    for block in range(first, last, BLOCK):
        stop = min(block + BLOCK, last)
        # Sort the block's pairs by key; those of a target keep their order.
        for k in range(classes * transforms + 1):
            place[k] = 0
        for i in range(pairs[block], pairs[stop]):
            place[keys[i] + 1] += 1
        for k in range(1, classes * transforms + 1):
            place[k] += place[k - 1]
        for c in range(block, stop):
            for i in range(pairs[c], pairs[c + 1]):
                to = place[keys[i]]
                targets[to], wanted[to] = c, sources[i]
                place[keys[i]] += 1
        # Now each key's place is the end of its pairs.
        begin = 0
        for c in range(classes):
            end = place[(c + 1) * transforms - 1]
            if end == begin:
                continue
            for i in range(begin, end):
                for j in range(t):
                    row, source = (targets[i] - first) * t + j, at + wanted[i]
                    # Four sums side by side, so that none waits for the one before.
                    error, second, third, fourth = remainder[c] * mass[source, j], 0.0, 0.0, 0.0
                    for k in range(0, groups, 4):
                        error = fma(weights[c, k], S[source * t + j, k], error)
                        second = fma(weights[c, k + 1], S[source * t + j, k + 1], second)
                        third = fma(weights[c, k + 2], S[source * t + j, k + 2], third)
                        fourth = fma(weights[c, k + 3], S[source * t + j, k + 3], fourth)
                    bound[row] += error + second + (third + fourth)
            q = counts[c]
            if q == 0:
                begin = end
                continue
            width = whole_vectors(q)
            rows, transform = (end - begin) * t, 0
            for chunk in range(0, rows, ROWS):
                count = min(ROWS, rows - chunk)
                for s in range(count):
                    i, j = begin + (chunk + s) // t, (chunk + s) % t
                    while place[c * transforms + transform] <= i:
                        transform += 1
                    shape[s] = transform
                    from_row[s] = ((at + wanted[i]) * t + j) * source_full
                    to_row[s] = ((targets[i] - first) * t + j) * full
                r = 0
                while r < count:
                    until = r + 1
                    while until < count and shape[until] == shape[r]:
                        until += 1
                    table = tables[c] + shape[r] * q
                    for k in range(q):
                        spot, sign = source_places[table + k], signs[table + k]
                        for s in range(r, until):
                            X[k * _APART + s] = sign * M[from_row[s] + spot]
                    r = until
                set_product(Y, none, width, count, width, X, none, apart, 1, operators, operators_at[c], width, q)
                for s in range(count):
                    to, table = to_row[s], tables[c] + shape[s] * q
                    for k in range(q):
                        L[to + places[table + k]] += signs[table + k] * Y[s * width + k]
            begin = end


@cached_njit(nogil=True)
def evaluate_leaves(  # type: ignore[no-untyped-def]
    leaves, y, leaf_start, leaf_stop, leaf_cell, leaf_scale, leaf_coord, cell, p, t, L, bound, start, out, bounds,
    first,
):  # fmt: skip
    """Put the values of expansions at the points of some leaves to `out` (columns, points from `start` on).

    Rows of L and bound begin with the `cell`; those of `bounds` (leaves, columns) with leaf `first`.
    """
    prefer_full_vectors()
    d = y.shape[0]
    inner, outer = p if d < 3 else p * p, p if d > 1 else 1
    none = np.int64(0)
    T = np.zeros(d * p * CHUNK)
    columns = np.zeros((p * p if d == 3 else 0) * CHUNK)
    R = np.zeros(t * outer * CHUNK)
    for k in leaves:
        local = leaf_cell[k] - cell
        for j in range(t):
            bounds[k - first, j] = bound[local * t + j]
        for begin in range(leaf_start[k], leaf_stop[k], CHUNK):
            count = min(CHUNK, leaf_stop[k] - begin)
            scale = leaf_scale[k]
            for f in range(d):
                _chebyshev(y, f, begin, count, scale, 2.0 * leaf_coord[k, f] + 1.0, p, T, f * p * CHUNK, CHUNK)
            at = local * t * outer * inner
            if d == 3:
                for b in range(p):
                    for c in range(p):
                        for i in range(count):
                            columns[(b * p + c) * CHUNK + i] = T[(p + b) * CHUNK + i] * T[(2 * p + c) * CHUNK + i]
                set_product(R, none, CHUNK, t * p, count, L, at, 1, inner, columns, none, CHUNK, inner)
            else:
                set_product(R, none, CHUNK, t * outer, count, L, at, 1, inner, T, (d - 1) * p * CHUNK, CHUNK, inner)
            for j in range(t):
                for i in range(count):
                    out[j, begin - start + i] = R[j * outer * CHUNK + i]
                for a in range(1, outer):
                    for i in range(count):
                        place = begin - start + i
                        out[j, place] = fma(T[a * CHUNK + i], R[(j * outer + a) * CHUNK + i], out[j, place])


@cached_njit(nogil=True, fastmath=FAST_MATH)
def add_near(  # type: ignore[no-untyped-def]
    first, last, stage, program, like, sources, targets, side, v, factors, leaf_start, leaf_stop, leaf_scale,
    leaf_coord, near, near_start, near_stop, start, out, mass,
):  # fmt: skip
    """Add to `out` (columns, points from `start` on) the entries of leaves from `first` up to `last` with near sources.

    Points of leaf k meet sources from `near_start[i]` up to `near_stop[i]`, i from `near[k]` up to `near[k + 1]`.
    `sources` and `targets` (d, n) are in [0, 1)^d, whose `side` is in the units of the profile. `stage` makes its
    entries of negative squared distances, in the type of `like`. Coordinates are taken relative to the leaf's centre,
    and the weights of a column times its power of two in `factors`, so that float32 can hold them. `mass` (leaves,
    columns) becomes the sums of |v| over the near sources, and a little for weights that float32 cannot hold.
    """
    prefer_full_vectors()
    d, t = sources.shape[0], v.shape[1]
    number = like.dtype.type
    entries, here = np.zeros((1, TARGETS * RUN), like.dtype), np.zeros((d, TARGETS), like.dtype)
    part, total = np.zeros(TARGETS, like.dtype), np.zeros(t * TARGETS)
    lost, zero = 2.0**-100 if like.itemsize == 4 else 0.0, number(0.0)
    centre = np.zeros(d)
    for k in range(first, last):
        met = 0
        for j in range(t):
            mass[k - first, j] = 0.0
        for r in range(near[k], near[k + 1]):
            met += near_stop[r] - near_start[r]
            for s in range(near_start[r], near_stop[r]):
                for j in range(t):
                    mass[k - first, j] += abs(v[s, j])
        for j in range(t):
            mass[k - first, j] += met * lost / factors[j]
        for f in range(d):
            centre[f] = (2.0 * leaf_coord[k, f] + 1.0) / leaf_scale[k]
        for begin in range(leaf_start[k], leaf_stop[k], TARGETS):
            m = min(TARGETS, leaf_stop[k] - begin)
            for i in range(t * TARGETS):
                total[i] = 0.0
            for f in range(d):
                for i in range(m):
                    here[f, i] = number((targets[f, begin + i] - centre[f]) * side)
            for r in range(near[k], near[k + 1]):
                for s in range(near_start[r], near_stop[r], RUN):
                    count = min(RUN, near_stop[r] - s)
                    for c in range(count):
                        x, base = number((sources[0, s + c] - centre[0]) * side), c * m
                        for i in range(m):
                            gap = here[0, i] - x
                            entries[0, base + i] = -(gap * gap)
                        for f in range(1, d):
                            x = number((sources[f, s + c] - centre[f]) * side)
                            for i in range(m):
                                gap = here[f, i] - x
                                entries[0, base + i] = fma(-gap, gap, entries[0, base + i])
                    call_entry_stage(stage, entries, 0, TARGETS * RUN, 1, m * count, program, 0)
                    for j in range(t):
                        for i in range(m):
                            part[i] = zero
                        c = 0
                        while c + 4 <= count:
                            w, x = number(v[s + c, j] * factors[j]), number(v[s + c + 1, j] * factors[j])
                            y, z = number(v[s + c + 2, j] * factors[j]), number(v[s + c + 3, j] * factors[j])
                            base = c * m
                            for i in range(m):
                                value = fma(x, entries[0, base + m + i], fma(w, entries[0, base + i], part[i]))
                                value = fma(y, entries[0, base + 2 * m + i], value)
                                part[i] = fma(z, entries[0, base + 3 * m + i], value)
                            c += 4
                        while c < count:
                            w, base = number(v[s + c, j] * factors[j]), c * m
                            for i in range(m):
                                part[i] = fma(w, entries[0, base + i], part[i])
                            c += 1
                        for i in range(m):
                            total[j * TARGETS + i] += part[i]
            for j in range(t):
                for i in range(m):
                    out[j, begin - start + i] += total[j * TARGETS + i] / factors[j]
