"""Decoder layers for passes of few rows on CPU: few calls, and for draft models packed weights.

Such a pass reads weights, and between them it calls small operators, which take as long. So products that read the same
rows are one, and what lies between products is compiled (`passes.py`): a layer is ten calls where the one of
transformers makes seventy. Weights of drafts stay packed, 4 bits where a GGUF file had them so, 8 bits else. Known for
layers of the Llama kind, which many models have; others keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel

from specdec.kernels.available import fused_kernels
from specdec.kernels.byte_linear import ByteLinear, byte_linear
from specdec.kernels.int4 import GROUP_SIZE, INT4, Int4Linear, has_int4, is_int4, read_levels
from specdec.kernels.int8 import INT8, Int8Linear, fits_int8
from specdec.kernels.kernel import has_onednn
from specdec.kernels.norm import FewRowsNorm
from specdec.kernels.packed import PackedLinear
from specdec.kernels.passes import CompiledPass, LayerPass, PlainPass, can_compile
from specdec.runner.attention import RaggedBatch

_MANY_ROWS = 24
"""From so many rows on, products in bfloat16 are quicker than those on packed weights: at 256 rows 2.5 times."""
_OUT_FEATURES_MULTIPLE = 64
"""4-bit weights are packed in blocks of so many."""


_Join = Callable[..., nn.Module]
"""Takes linear layers."""


class _Float32Linear(PackedLinear):
    """A linear layer in float32, whatever its rows are.

    Args:
        weight: (out_features, in_features)
        bias: (out_features,)
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0])
        self._weights = weight, bias

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """See `PackedLinear`: float32."""
        return functional.linear(rows.float(), *self._weights)


class _WithManyRows(PackedLinear):
    """A packed layer, and the same weights in bfloat16 for passes of many rows: prefills.

    Args:
        packed: of few rows.
        weight: (out_features, in_features)
        bias: (out_features,)
    """

    def __init__(self, packed: PackedLinear, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0])
        self.packed = packed
        self._few = packed.multiply
        self._wide = weight.to(torch.bfloat16), None if bias is None else bias.to(torch.bfloat16)

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """See `PackedLinear`: bfloat16."""
        if rows.shape[0] < _MANY_ROWS:
            return self._few(rows)
        return functional.linear(rows.to(torch.bfloat16), *self._wide)


class FewRowsLayer(nn.Module):
    """Does what a decoder layer of the Llama kind does.

    Args:
        layer: whose weights it takes.
        join: see `FewRowsModel`.
    """

    def __init__(self, layer: LlamaDecoderLayer, join: _Join) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx: int = attention.layer_idx
        self.before_attention = FewRowsNorm(layer.input_layernorm)
        self.before_mlp = FewRowsNorm(layer.post_attention_layernorm)
        turned = torch.arange(attention.head_dim).view(2, -1).t().flatten()
        self.qkv = join(_reordered(attention.q_proj, turned), _reordered(attention.k_proj, turned), attention.v_proj)
        self.out = join(attention.o_proj)
        self.gate_up = join(mlp.gate_proj, mlp.up_proj)
        self.down = join(mlp.down_proj)
        self._products: list[Callable[[torch.Tensor], torch.Tensor]] = []

    def forward(self, rows: torch.Tensor, layer_pass: LayerPass) -> torch.Tensor:
        """As the layer of transformers, on a ragged batch.

        Args:
            rows: hidden states, (1, rows, hidden_size), float32; they are not changed.
            layer_pass: what this pass is of.
        """
        if not self._products:
            # Called without the detours of modules: a pass of one row can tell.
            modules = self.qkv, self.out, self.gate_up, self.down
            self._products += [each.multiply if isinstance(each, PackedLinear) else each.forward for each in modules]
        qkv, out, gate_up, down = self._products
        attended = layer_pass.attended(qkv(layer_pass.normed(rows, self.before_attention)), self.layer_idx)
        rows = layer_pass.added(rows, out(attended))
        gated = layer_pass.gated(gate_up(layer_pass.normed(rows, self.before_mlp)))
        return layer_pass.added(rows, down(gated))


class FewRowsModel(nn.Module):
    """Does what a decoder of the Llama kind does without its head, on ragged batches only.

    Args:
        model: whose layers it takes; they are gone from it.
        join: makes one layer, or a stand-in, of linear layers that read the same rows.
    """

    def __init__(self, model: LlamaModel, join: _Join) -> None:
        super().__init__()
        config: Any = model.config
        layers: Any = model.layers
        self.embed_tokens, self.rotary_emb, self.norm = model.embed_tokens, model.rotary_emb, FewRowsNorm(model.norm)
        self._attention = layers[0].self_attn.scaling, config.num_attention_heads, config.num_key_value_heads
        self.layers = nn.ModuleList()
        for place, layer in enumerate(layers):
            # One at a time, so that no more than one layer is there twice.
            layers[place] = nn.Identity()
            self.layers.append(FewRowsLayer(layer, join))
            del layer
        self._kernels = fused_kernels()

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
        about = ragged_batch, cosines[0, :, :half], sines[0, :, :half], *self._attention
        layer_pass: LayerPass
        if self._kernels is not None and can_compile(ragged_batch):
            layer_pass = CompiledPass(self._kernels, *about)
        else:
            layer_pass = PlainPass(*about)
        for layer in self.layers:
            rows = layer(rows, layer_pass)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(rows))


@torch.no_grad()
def pack_for_few_rows(model: PreTrainedModel) -> None:
    """Pack the linear layers of a draft model in place, and give it layers of few calls if they are of a known kind.

    Args:
        model: float32, on a CPU that `has_int8`; with the ragged attention.
    """
    holder: Any = model
    if _has_known_layers(model):
        holder.model = FewRowsModel(holder.model, _packed)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                setattr(parent, name, _packed(layer))


@torch.no_grad()
def join_for_few_rows(model: PreTrainedModel) -> bool:
    """Give a model on CPU layers of few calls, in place, if they are of a known kind; it computes the same.

    Args:
        model: with the ragged attention. From then on it runs ragged batches only.

    Returns:
        Whether it has them now: it is in float32, and Numba is there.
    """
    holder: Any = model
    is_plain = model.device.type == "cpu" and {each.dtype for each in model.parameters()} == {torch.float32}
    if not is_plain or not _has_known_layers(model) or fused_kernels() is None:
        return False
    holder.model = FewRowsModel(holder.model, _joined)
    return True


def _has_known_layers(model: PreTrainedModel) -> bool:
    return type(model.base_model) is LlamaModel and model.config.hidden_act == "silu"


def packed_dtype(model: nn.Module) -> str:
    """What a packed model calls its element type: that of weights and, behind the stroke, of the rows in products."""
    bits = {module.bits for module in model.modules() if isinstance(module, ByteLinear)}
    if bits:
        return f"int{min(bits)}/int8"
    return INT4 if is_int4(model) else INT8


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


def _joined(*layers: nn.Linear) -> nn.Linear:
    """Linear layers that read the same rows, as one; all have a bias, or none has."""
    if len(layers) == 1:
        return layers[0]
    biases: list[torch.Tensor | None] = [layer.bias for layer in layers]
    given = [bias for bias in biases if bias is not None]
    num_outputs = sum(layer.out_features for layer in layers)
    joined = nn.Linear(layers[0].in_features, num_outputs, bias=bool(given), device="meta")
    joined.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]), requires_grad=False)
    if given:
        joined.bias = nn.Parameter(torch.cat(given), requires_grad=False)
    return joined


def _packed(*layers: nn.Linear) -> PackedLinear:
    """The same, packed; in float32 if their sizes are odd."""
    joined = _joined(*layers)
    weight, bias = joined.weight, joined.bias
    packed = byte_linear(weight, bias)
    if packed is not None:
        return packed
    if has_int4() and weight.shape[1] % GROUP_SIZE == 0 and weight.shape[0] % _OUT_FEATURES_MULTIPLE == 0:
        read = read_levels(weight)
        if read is not None:
            return _for_all_rows(Int4Linear(*read, bias), weight, bias)
    if fits_int8(weight):
        return _for_all_rows(Int8Linear(weight, bias), weight, bias)
    return _Float32Linear(weight, bias)


def _for_all_rows(packed: PackedLinear, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """The packed layer alone where the processor has no products of bfloat16."""
    return _WithManyRows(packed, weight, bias) if has_onednn(torch.bfloat16) else packed
