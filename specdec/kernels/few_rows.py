"""Decoder layers for passes of a row or two, as a draft model on CPU makes: packed weights, and few calls.

Such a pass reads weights, and between them it calls small operators, which take as long. So weights stay packed (4 bits
where a GGUF file had them so, 8 bits else), products that read the same rows are one, and a layer is some twenty calls
where the one of transformers makes seventy. Known for layers of the Llama kind, which many models have; others keep
theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specdec.kernels.int4 import GROUP_SIZE, Int4Linear, has_int4, read_levels
from specdec.kernels.int8 import Int8Linear, fits_int8
from specdec.runner.attention import RaggedBatch, ragged_attention
from specdec.runner.hidden_states import layer_list

_OUT_FEATURES_MULTIPLE = 64
"""4-bit weights are packed in blocks of so many."""


class FewRowsLayer(nn.Module):
    """Does what a decoder layer of the Llama kind does, on packed weights.

    Args:
        layer: whose weights it takes.
        head_dim: of its attention.
        num_heads: of queries.
        num_kv_heads: of keys and values.
    """

    def __init__(self, layer: LlamaDecoderLayer, *, head_dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx: int = attention.layer_idx
        self._head_dim, self._num_heads, self._num_kv_heads = head_dim, num_heads, num_kv_heads
        self._scaling: float = attention.scaling
        self.before_attention, self.before_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        self._epsilon: float = layer.input_layernorm.variance_epsilon
        self.qkv = _packed(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = _packed(attention.o_proj)
        self.gate_up = _packed(mlp.gate_proj, mlp.up_proj)
        self.down = _packed(mlp.down_proj)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        ragged_batch: RaggedBatch,
        **_: object,
    ) -> torch.Tensor:
        """As the layer of transformers, on a ragged batch.

        Args:
            hidden_states: (1, rows, hidden_size), float32.
            position_embeddings: cosines and sines, each (1, rows, head_dim).
            ragged_batch: the sequences.
        """
        shape, rows = self.before_attention.shape, hidden_states.shape[1]
        normed = functional.rms_norm(hidden_states, shape, self.before_attention, self._epsilon)
        heads = self.qkv(normed).view(1, rows, -1, self._head_dim).transpose(1, 2)
        num_turned = self._num_heads + self._num_kv_heads
        cosines, sines = position_embeddings
        first, second = (turned := heads[:, :num_turned]).chunk(2, -1)
        turned = turned * cosines[:, None] + torch.cat((-second, first), -1) * sines[:, None]
        attended, _weights = ragged_attention(
            self,
            turned[:, : self._num_heads],
            turned[:, self._num_heads :],
            heads[:, num_turned:],
            None,
            ragged_batch=ragged_batch,
            scaling=self._scaling,
        )
        hidden_states = hidden_states + self.out(attended.view(1, rows, -1))
        normed = functional.rms_norm(hidden_states, shape, self.before_mlp, self._epsilon)
        gate, up = self.gate_up(normed).chunk(2, -1)
        output: torch.Tensor = hidden_states + self.down(functional.silu(gate) * up)
        return output


@torch.no_grad()
def pack_for_few_rows(model: PreTrainedModel) -> None:
    """Pack the linear layers of a draft model in place, and give it layers of few calls if they are of a known kind.

    Args:
        model: float32, on a CPU that `has_int8`; with the ragged attention.
    """
    config: Any = model.config
    if config.model_type == "llama" and config.hidden_act == "silu":
        layers: Any = model.get_submodule(layer_list(model))
        for place, layer in enumerate(list(layers)):
            layers[place] = FewRowsLayer(
                layer,
                head_dim=layer.self_attn.head_dim,
                num_heads=config.num_attention_heads,
                num_kv_heads=config.num_key_value_heads,
            )
    for holder in list(model.modules()):
        for name, layer in list(holder.named_children()):
            if type(layer) is nn.Linear:
                setattr(holder, name, _packed(layer))


def _packed(*layers: nn.Linear) -> nn.Module:
    """Linear layers that read the same rows, as one; float32 if their sizes are odd."""
    weight = torch.cat([layer.weight for layer in layers])
    biases: list[torch.Tensor | None] = [layer.bias for layer in layers]
    given = [bias for bias in biases if bias is not None]
    bias = torch.cat(given) if given else None
    if has_int4() and weight.shape[1] % GROUP_SIZE == 0 and weight.shape[0] % _OUT_FEATURES_MULTIPLE == 0:
        read = read_levels(weight)
        if read is not None:
            return Int4Linear(*read, bias)
    if fits_int8(weight):
        return Int8Linear(weight, bias)
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias, requires_grad=False)
    return plain
