"""What a layer of few calls does between its products: by PyTorch, or compiled where rows are few."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from specdec.kernels.norm import FewRowsNorm
from specdec.runner.attention import RaggedBatch, attend
from specdec.runner.segment import Segment

_MOST_COMPILED_ROWS = 16
"""Of one sequence. Of more, PyTorch reads its keys and values once, and the compiled attention once for each row."""


class LayerPass(Protocol):
    """One pass of a batch, as its layers see it. Rows of a product's input and output are of whatever type it likes."""

    def normed(self, rows: torch.Tensor, norm: FewRowsNorm) -> torch.Tensor:
        """(1, rows, hidden_size), float32, to (rows, hidden_size). Gone with the next call."""
        ...

    def attended(self, qkv: torch.Tensor, layer: int) -> torch.Tensor:
        """Attention, over what the caches hold and the new rows, whose keys and values are written.

        Args:
            qkv: (rows, (heads + 2 * kv_heads) * head_dim). The two numbers of a query or key that a position turns
                around each other lie side by side.
            layer: index of the layer.

        Returns:
            (rows, heads * head_dim). Gone with the next call.
        """
        ...

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up (SwiGLU, Shazeer 2020), (rows, 2 * width) to (rows, width). Gone with the next call."""
        ...

    def added(self, rows: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        """Their sum; (1, rows, hidden_size), float32, and (rows, hidden_size), to a new tensor like the first."""
        ...


class PlainPass:
    """A `LayerPass` by PyTorch, of any batch.

    Args:
        batch: the sequences.
        cosines: of the rows' positions, (rows, head_dim / 2), float32.
        sines: as `cosines`.
        scaling: factor on the scores.
        num_heads: of queries.
        num_kv_heads: of keys and values.
    """

    def __init__(
        self,
        batch: RaggedBatch,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        scaling: float,
        num_heads: int,
        num_kv_heads: int,
    ) -> None:
        self._batch, self._num_heads, self._num_kv_heads = batch, num_heads, num_kv_heads
        # By which queries, keys and values are to be multiplied: the turn of their position, and for queries the scale.
        turn = torch.complex(cosines, sines)[:, None]
        kinds = ((turn * scaling, num_heads), (turn, num_kv_heads), (torch.ones_like(turn), num_kv_heads))
        self._turns = torch.cat([kind.expand(-1, num, -1) for kind, num in kinds], 1)

    def normed(self, rows: torch.Tensor, norm: FewRowsNorm) -> torch.Tensor:
        """See `LayerPass`."""
        return norm.forward(rows)[0]

    def attended(self, qkv: torch.Tensor, layer: int) -> torch.Tensor:
        """See `LayerPass`."""
        pairs = torch.view_as_complex(qkv.float().view(*self._turns.shape, 2))
        heads = torch.view_as_real(pairs * self._turns).flatten(2).transpose(0, 1)  # (all heads, rows, head_dim)
        self._batch.write_heads(layer, heads[self._num_heads :])
        return attend(layer, heads[: self._num_heads], self._num_kv_heads, self._batch, scaling=1.0).flatten(1)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `LayerPass`."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up

    def added(self, rows: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        """See `LayerPass`."""
        return rows + more


class CompiledPass:
    """A `LayerPass` by compiled functions, of a batch that `can_compile`.

    Args:
        kernels: from `fused_kernels`.
        batch: as for `PlainPass`, like all that follows.
    """

    def __init__(
        self,
        kernels: ModuleType,
        batch: RaggedBatch,
        cosines: torch.Tensor,
        sines: torch.Tensor,
        scaling: float,
        num_heads: int,
        num_kv_heads: int,
    ) -> None:
        self._kernels = kernels
        self._storage = batch.segments[0].cache.pool.storage
        self._turns = cosines.contiguous().numpy(), sines.contiguous().numpy(), scaling
        num_rows, head_dim = len(cosines), 2 * cosines.shape[1]
        self._size = num_rows, num_heads * head_dim
        self._like = cosines.new_empty((2 * num_kv_heads, 0, head_dim))
        self._visible = _visible(batch.segments)
        self._outs: dict[int, tuple[torch.Tensor, np.ndarray]] = {}

    def normed(self, rows: torch.Tensor, norm: FewRowsNorm) -> torch.Tensor:
        """See `LayerPass`."""
        out, array = self._out(rows.shape[-1])
        self._kernels.norm(_array(rows[0]), norm.weight, norm.least, array)
        return out

    def attended(self, qkv: torch.Tensor, layer: int) -> torch.Tensor:
        """See `LayerPass`."""
        out, array = self._out(self._size[1])
        heads = self._storage.heads(layer, self._like).numpy()
        self._kernels.attend(_array(qkv), *self._turns, heads, *self._visible, array)
        return out

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `LayerPass`."""
        out, array = self._out(gate_up.shape[1] // 2)
        self._kernels.gate(_array(gate_up), array)
        return out

    def added(self, rows: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        """See `LayerPass`."""
        return rows + more

    def _out(self, width: int) -> tuple[torch.Tensor, np.ndarray]:
        """Room for results of one width, the same for all layers."""
        if width not in self._outs:
            out = torch.empty((self._size[0], width), dtype=torch.float32)
            self._outs[width] = out, out.numpy()
        return self._outs[width]


def can_compile(batch: RaggedBatch) -> bool:
    """Whether a batch is one that `CompiledPass` is made for: few rows of each sequence, all of them in one storage."""
    storage = batch.segments[0].cache.pool.storage
    return all(each.num_rows <= _MOST_COMPILED_ROWS and each.cache.pool.storage is storage for each in batch.segments)


def _array(rows: torch.Tensor) -> np.ndarray:
    return rows.float().contiguous().numpy()


def _visible(segments: Sequence[Segment]) -> tuple[np.ndarray, ...]:
    """What each row writes and sees, as `fused.attend` takes it: slots, seen, firsts, counts and paths."""
    slots: list[int] = []
    seen: list[np.ndarray] = []
    firsts: list[int] = []
    counts: list[int] = []
    paths: list[list[int]] = []
    first = 0
    for segment in segments:
        length, num_nodes = segment.cache.length, len(segment.parents or ())
        end = length + segment.num_rows
        slots += segment.cache.slots(length, end)
        seen += [np.arange(*span) for span in segment.spans]
        nodes = segment.cache.slots(end - num_nodes, end)
        ways: list[list[int]] = []
        for node, parent in enumerate(segment.parents or ()):
            ways.append([*(ways[parent] if parent >= 0 else ()), nodes[node]])
        for place in range(length, end):
            node = place - (end - num_nodes)
            firsts.append(first)
            counts.append(place + 1 if node < 0 else end - num_nodes)
            paths.append(ways[node] if node >= 0 else [])
        first += end
    columns = list(itertools.zip_longest(*paths, fillvalue=-1))
    table = np.array(columns, dtype=np.int64).reshape(len(columns), len(slots))
    return (
        np.array(slots),
        np.concatenate(seen),
        np.array(firsts),
        np.array(counts),
        np.ascontiguousarray(table.T),
    )
