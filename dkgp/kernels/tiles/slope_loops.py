"""The compiled loop of derivatives in inputs: a kernel's steps forwards, then backwards, for one row and some columns.

Forwards each step leaves its values at the columns; a leaf also dk/ds (or dk/dt) of its profile. Backwards the weights
go from the last step to the leaves, by the rules of sums and products, and a leaf adds its share to each coordinate
that it reads, by

    ds / dz_q = 2 w_q (z_q - z'_q),    dt / dz_q = w_q z'_q.

Columns are the vector dimension. A coordinate's sum has a lane for each of `SLOPE_COLUMNS` columns; lanes are added up
last, one after the other.
"""

from __future__ import annotations

import numpy as np

from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles.loops import call_entry_stage
from dkgp.kernels.tiles.stages import PARAMETERS
from dkgp.kernels.vector_math import FAST_MATH, fma, prefer_full_vectors

# Columns that are taken together: some tens of KB for each step, in the core's cache.
SLOPE_COLUMNS = 512
# Slopes of at most so many times 2**floor are zero: those that met the floor, with any factors.
ABOVE_FLOOR = 2.0**60
# Operations of a step.
DISTANCE, DOT_PRODUCT, CONSTANT, SCALE, ADD, MULTIPLY = range(6)
# Columns of the table of steps: its operation, the steps that it takes, the first of its coordinates and how many, the
# addresses of the stages of its values and slopes; then its numbers, the bits of float64.
KIND, LEFT, RIGHT, FIRST, COUNT, VALUES, SLOPES, NUMBERS = range(8)
STEP_WIDTH = NUMBERS + PARAMETERS


@cached_njit(fastmath=FAST_MATH, nogil=True)
def add_slopes(rows, columns, weights, steps, places, scales, out):  # type: ignore[no-untyped-def]
    """`out[i, t, q] += sum_j weights[t, j] dk(x_i, x_j) / dz_iq`, for a kernel of unit amplitude.

    `rows` (r, q) and `columns` (q, n): coordinates. `weights` (t, n). `steps` (steps, STEP_WIDTH) int64; `places` and
    `scales`: the coordinates that leaves read, and w_q, leaf after leaf. `out` (r, t, q).
    """
    prefer_full_vectors()
    count, targets, coordinates = steps.shape[0], weights.shape[0], rows.shape[1]
    numbers = steps.view(np.float64)
    values, slopes = np.empty((count, SLOPE_COLUMNS)), np.empty((count, SLOPE_COLUMNS))
    shares = np.empty((count, SLOPE_COLUMNS))
    sums = np.empty((targets, coordinates, SLOPE_COLUMNS))
    for i in range(rows.shape[0]):
        sums[:, :, :] = 0.0
        for first in range(0, columns.shape[1], SLOPE_COLUMNS):
            width = min(SLOPE_COLUMNS, columns.shape[1] - first)
            for step in range(count):
                kind, left, right = steps[step, KIND], steps[step, LEFT], steps[step, RIGHT]
                if kind == CONSTANT:
                    constant = numbers[step, NUMBERS]
                    for j in range(width):
                        values[step, j] = constant
                elif kind == SCALE:
                    factor = numbers[step, NUMBERS]
                    for j in range(width):
                        values[step, j] = factor * values[left, j]
                elif kind == ADD:
                    for j in range(width):
                        values[step, j] = values[left, j] + values[right, j]
                elif kind == MULTIPLY:
                    for j in range(width):
                        values[step, j] = values[left, j] * values[right, j]
                else:
                    for j in range(width):
                        slopes[step, j] = 0.0
                    for k in range(steps[step, FIRST], steps[step, FIRST] + steps[step, COUNT]):
                        place, scale = places[k], scales[k]
                        z = rows[i, place]
                        if kind == DISTANCE:
                            for j in range(width):
                                difference = z - columns[place, first + j]
                                slopes[step, j] = fma(-scale * difference, difference, slopes[step, j])
                        else:
                            scaled = scale * z
                            for j in range(width):
                                slopes[step, j] = fma(scaled, columns[place, first + j], slopes[step, j])
                    at = step * SLOPE_COLUMNS
                    if count > 1:
                        for j in range(width):
                            values[step, j] = slopes[step, j]
                        call_entry_stage(
                            steps[step, VALUES], values, at, SLOPE_COLUMNS, 1, width, steps, step * STEP_WIDTH + NUMBERS
                        )
                    call_entry_stage(
                        steps[step, SLOPES], slopes, at, SLOPE_COLUMNS, 1, width, steps, step * STEP_WIDTH + NUMBERS
                    )
                    # A difference of inputs may be large enough to make something of a floor.
                    least = ABOVE_FLOOR * 2.0 ** numbers[step, NUMBERS + PARAMETERS - 1]
                    for j in range(width):
                        slopes[step, j] = slopes[step, j] if abs(slopes[step, j]) > least else 0.0
            for t in range(targets):
                for j in range(width):
                    shares[count - 1, j] = weights[t, first + j]
                for step in range(count - 1, -1, -1):
                    kind, left, right = steps[step, KIND], steps[step, LEFT], steps[step, RIGHT]
                    if kind == SCALE:
                        factor = numbers[step, NUMBERS]
                        for j in range(width):
                            shares[left, j] = factor * shares[step, j]
                    elif kind == ADD:
                        for j in range(width):
                            shares[left, j] = shares[step, j]
                            shares[right, j] = shares[step, j]
                    elif kind == MULTIPLY:
                        for j in range(width):
                            shares[left, j] = shares[step, j] * values[right, j]
                            shares[right, j] = shares[step, j] * values[left, j]
                    elif kind != CONSTANT:
                        for j in range(width):
                            shares[step, j] = shares[step, j] * slopes[step, j]
                        for k in range(steps[step, FIRST], steps[step, FIRST] + steps[step, COUNT]):
                            place, scale = places[k], scales[k]
                            if kind == DISTANCE:
                                z, twice = rows[i, place], 2.0 * scale
                                for j in range(width):
                                    difference = z - columns[place, first + j]
                                    sums[t, place, j] = fma(twice * shares[step, j], difference, sums[t, place, j])
                            else:
                                for j in range(width):
                                    sums[t, place, j] = fma(
                                        scale * shares[step, j], columns[place, first + j], sums[t, place, j]
                                    )
        for t in range(targets):
            for q in range(coordinates):
                total = 0.0
                for j in range(SLOPE_COLUMNS):
                    total += sums[t, q, j]
                out[i, t, q] += total
