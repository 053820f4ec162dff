"""Decoder layers for passes of a row or two, as a draft model on CPU makes: packed weights, and few calls.

Such a pass reads weights, and between them it calls small operators, which take as long. So weights stay packed (4 bits
where a GGUF file had them so, 8 bits else), products that read the same rows are one, and a layer is some twenty calls
where the one of transformers makes seventy. Known for layers of the Llama kind, which many models have; others keep
theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel

from specdec.kernels.int4 import GROUP_SIZE, Int4Linear, has_int4, read_levels
from specdec.kernels.int8 import Int8Linear, fits_int8
from specdec.kernels.kernel import has_onednn
from specdec.runner.attention import RaggedBatch, ragged_attention

_MANY_ROWS = 24
"""From so many rows on, products in bfloat16 are quicker than those on packed weights: at 256 rows 2.5 times."""
_OUT_FEATURES_MULTIPLE = 64
"""4-bit weights are packed in blocks of so many."""


class _Float32Linear(nn.Linear):
    """A linear layer in float32, whatever its rows are."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.float()).to(input.dtype)


class _WithManyRows(nn.Module):
    """A packed layer, and the same weights in bfloat16 for passes of many rows: prefills.

    Args:
        packed: of few rows.
        weight: (out_features, in_features)
        bias: (out_features,)
    """

    def __init__(self, packed: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.packed = packed
        self._few = packed.forward
        self._size = _MANY_ROWS * weight.shape[1]
        self._wide = weight.to(torch.bfloat16), None if bias is None else bias.to(torch.bfloat16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., in_features) to (..., out_features), of the same element type."""
        if rows.numel() < self._size:
            few: torch.Tensor = self._few(rows)
            return few
        return functional.linear(rows.to(torch.bfloat16), *self._wide).to(rows.dtype)


class FewRowsNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019) in four calls.

    Args:
        norm: whose weight it takes.
    """

    def __init__(self, norm: Any) -> None:
        super().__init__()
        size = norm.weight.numel()
        self._weight: torch.Tensor = norm.weight.detach() * math.sqrt(size)
        # The root of size * (mean square + epsilon) is the hypotenuse of the norm and this.
        self._least = torch.tensor(math.sqrt(size * norm.variance_epsilon))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(..., hidden_size), float32, to the same shape."""
        lengths = torch.hypot(torch.linalg.vector_norm(rows, dim=-1, keepdim=True), self._least)
        return rows * (self._weight / lengths)


class FewRowsLayer(nn.Module):
    """Does what a decoder layer of the Llama kind does, on packed weights.

    Args:
        layer: whose weights it takes.
        num_heads: of queries.
        num_kv_heads: of keys and values.
    """

    def __init__(self, layer: LlamaDecoderLayer, *, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx: int = attention.layer_idx
        self._head_dim: int = attention.head_dim
        self._num_heads, self._num_turned = num_heads, num_heads + num_kv_heads
        self._scaling: float = attention.scaling
        self.before_attention = FewRowsNorm(layer.input_layernorm)
        self.before_mlp = FewRowsNorm(layer.post_attention_layernorm)
        turned = torch.arange(self._head_dim).view(2, -1).t().flatten()
        self.qkv = _packed(_reordered(attention.q_proj, turned), _reordered(attention.k_proj, turned), attention.v_proj)
        self.out = _packed(attention.o_proj)
        self.gate_up = _packed(mlp.gate_proj, mlp.up_proj)
        self.down = _packed(mlp.down_proj)
        parts = self.before_attention, self.qkv, self.out, self.before_mlp, self.gate_up, self.down
        # Called without the detours of modules: a pass of one row can tell.
        self._parts: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = tuple(part.forward for part in parts)

    def forward(self, rows: torch.Tensor, turn: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """As the layer of transformers, on a ragged batch.

        Args:
            rows: hidden states, (1, rows, hidden_size), float32.
            turn: by which the positions turn queries and keys, (1, rows, 1, head_dim / 2), complex64.
            batch: the sequences.
        """
        norm, qkv, out, norm_again, gate_up, down = self._parts
        num_rows, half = rows.shape[1], self._head_dim // 2
        pairs = qkv(norm(rows)).view(1, num_rows, -1, half, 2)
        turned = torch.view_as_real(torch.view_as_complex(pairs[:, :, : self._num_turned]) * turn).flatten(3)
        turned = turned.transpose(1, 2)
        values = pairs[:, :, self._num_turned :].flatten(3).transpose(1, 2)
        attended, _weights = ragged_attention(
            self,
            turned[:, : self._num_heads],
            turned[:, self._num_heads :],
            values,
            None,
            ragged_batch=batch,
            scaling=self._scaling,
        )
        rows = rows + out(attended.view(1, num_rows, -1))
        # Rounded here: the products on packed weights want it so, and what is between them need not be finer.
        gate, up = gate_up(norm_again(rows).to(torch.bfloat16)).chunk(2, -1)
        return rows + down(functional.silu(gate) * up)


class FewRowsModel(nn.Module):
    """Does what a decoder of the Llama kind does without its head, on ragged batches only.

    Args:
        model: whose layers it takes.
    """

    def __init__(self, model: LlamaModel) -> None:
        super().__init__()
        config: Any = model.config
        layers: Any = model.layers
        self.embed_tokens, self.rotary_emb, self.norm = model.embed_tokens, model.rotary_emb, FewRowsNorm(model.norm)
        self.layers = nn.ModuleList(
            FewRowsLayer(layer, num_heads=config.num_attention_heads, num_kv_heads=config.num_key_value_heads)
            for layer in layers
        )

    def forward(
        self,
        *,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        ragged_batch: RaggedBatch,
        **_: object,
    ) -> BaseModelOutputWithPast:
        """As the model of transformers; (1, rows) tokens and positions, (1, rows, hidden_size) states."""
        rows = self.embed_tokens(input_ids)
        cosines, sines = self.rotary_emb(rows, position_ids=position_ids)
        half = cosines.shape[-1] // 2
        turn = torch.complex(cosines[:, :, None, :half], sines[:, :, None, :half])
        for layer in self.layers:
            rows = layer(rows, turn, ragged_batch)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(rows))


@torch.no_grad()
def pack_for_few_rows(model: PreTrainedModel) -> None:
    """Pack the linear layers of a draft model in place, and give it layers of few calls if they are of a known kind.

    Args:
        model: float32, on a CPU that `has_int8`; with the ragged attention.
    """
    holder: Any = model
    if type(holder.base_model) is LlamaModel and model.config.hidden_act == "silu":
        holder.model = FewRowsModel(holder.model)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                setattr(parent, name, _packed(layer))


def _reordered(layer: nn.Linear, order: torch.Tensor) -> nn.Linear:
    """A linear layer whose outputs of each head come in another order.

    The two numbers that a position turns around each other then lie side by side, as complex numbers do. Products of
    queries and keys do not change by it.
    """
    places = torch.arange(layer.out_features).view(-1, len(order))[:, order].flatten()
    reordered = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    reordered.weight = nn.Parameter(layer.weight[places], requires_grad=False)
    if layer.bias is not None:
        reordered.bias = nn.Parameter(layer.bias[places], requires_grad=False)
    return reordered


def _packed(*layers: nn.Linear) -> nn.Module:
    """Linear layers that read the same rows, as one; float32 if their sizes are odd."""
    weight = torch.cat([layer.weight for layer in layers])
    biases: list[torch.Tensor | None] = [layer.bias for layer in layers]
    given = [bias for bias in biases if bias is not None]
    bias = torch.cat(given) if given else None
    if has_int4() and weight.shape[1] % GROUP_SIZE == 0 and weight.shape[0] % _OUT_FEATURES_MULTIPLE == 0:
        read = read_levels(weight)
        if read is not None:
            return _for_all_rows(Int4Linear(*read, bias), weight, bias)
    if fits_int8(weight):
        return _for_all_rows(Int8Linear(weight, bias), weight, bias)
    plain = _Float32Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias, requires_grad=False)
    return plain


def _for_all_rows(packed: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    """The packed layer alone where the processor has no products of bfloat16."""
    return _WithManyRows(packed, weight, bias) if has_onednn(torch.bfloat16) else packed
