"""Products of few rows in float32, compiled: weights are read once for up to eight rows, as fast as memory gives them.

The weight lies in tiles of as many outputs as a vector has lanes, and each lane sums up one output, from the first
input to the last. So a row's product has the same bits whatever the number of rows. Several tiles are read at the same
time, for a processor fetches several streams faster than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specdec.kernels.compiling import compiled
from specdec.kernels.vectors import FLOAT, Vectors, cgutils, has_feature, on_arrays

NUM_LANES = 16 if has_feature("avx512f") else 8 if has_feature("avx2") else 4
"""Outputs of a tile."""
_NUM_SUMS = 24 if has_feature("avx512f") else 10
"""How many vectors of sums fit into the processor's registers beside the rest."""
_MOST_TILES = 4
OUT_FEATURES_MULTIPLE = NUM_LANES * _MOST_TILES


def _turn(num_rows: int) -> tuple[Callable[..., None], int]:
    """For compiled functions: products of so many rows with some tiles, and with how many.

    It takes weights from the first of the tiles on, (tiles, in_features, lanes), rows, (rows, in_features), and where
    to put the products, (rows, outputs).
    """
    num_tiles = next(number for number in (_MOST_TILES, 2, 1) if number * num_rows <= _NUM_SUMS)

    def generate(builder: Any, arrays: Sequence[Any]) -> None:
        vectors = Vectors(builder, NUM_LANES)
        weights, rows, out = (vectors.start(array) for array in arrays)
        size = cgutils.unpack_tuple(builder, arrays[0].shape)[1]
        out_stride = cgutils.unpack_tuple(builder, arrays[2].strides)[0]
        whole = size.type
        tile_size = builder.mul(size, whole(NUM_LANES * 4))
        totals = [[vectors.total() for _ in range(num_tiles)] for _ in range(num_rows)]
        with cgutils.for_range(builder, size) as loop:
            at = builder.mul(loop.index, whole(NUM_LANES * 4))
            starts = [builder.add(at, builder.mul(tile_size, whole(tile))) for tile in range(num_tiles)]
            words = [vectors.load(vectors.floats, weights, start) for start in starts]
            for row, of_row in enumerate(totals):
                at = builder.mul(builder.add(builder.mul(size, whole(row)), loop.index), whole(4))
                number = vectors.everywhere(vectors.load(FLOAT, rows, at), vectors.floats)
                for word, total in zip(words, of_row, strict=True):
                    vectors.add_product(total, word, number)
        for row, of_row in enumerate(totals):
            for tile, total in enumerate(of_row):
                at = builder.add(builder.mul(out_stride, whole(row)), whole(tile * NUM_LANES * 4))
                vectors.store(builder.load(total), out, at)

    return on_arrays(3, generate), num_tiles


(_one, _tiles_of_one), (_two, _tiles_of_two), (_four, _tiles_of_four) = map(_turn, (1, 2, 4))
(_six, _tiles_of_six), (_eight, _tiles_of_eight) = map(_turn, (6, 8))


def padded(num_rows: int) -> int:
    """How many rows `multiply` must be given for so many: 1, 2, 4, 6, or a multiple of 8."""
    multiple = 1 if num_rows == 1 else 2 if num_rows <= 6 else 8
    return -(-num_rows // multiple) * multiple


@compiled("float32[:,::1]", "float32[:,:,::1]", "float32[:,::1]")
def multiply(rows: Any, weights: Any, out: Any) -> None:
    """Products of rows with a tiled weight.

    Args:
        rows: (rows, in_features), as many as `padded` says.
        weights: (tiles, in_features, lanes), a multiple of four tiles.
        out: (rows, out_features)
    """
    if rows.shape[0] == 1:
        for tile in range(0, weights.shape[0], _tiles_of_one):
            _one(weights[tile:], rows, out[:, tile * NUM_LANES :])
    elif rows.shape[0] == 2:
        for tile in range(0, weights.shape[0], _tiles_of_two):
            _two(weights[tile:], rows, out[:, tile * NUM_LANES :])
    elif rows.shape[0] == 4:
        for tile in range(0, weights.shape[0], _tiles_of_four):
            _four(weights[tile:], rows, out[:, tile * NUM_LANES :])
    elif rows.shape[0] == 6:
        for tile in range(0, weights.shape[0], _tiles_of_six):
            _six(weights[tile:], rows, out[:, tile * NUM_LANES :])
    else:
        for tile in range(0, weights.shape[0], _tiles_of_eight):
            for row in range(0, rows.shape[0], 8):
                _eight(weights[tile:], rows[row:], out[row:, tile * NUM_LANES :])
