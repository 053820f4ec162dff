"""Draft models that were trained here: some layers of their target, and a short LM head.

A draft's file holds what was trained. Everything else is the target's own, and read from the target's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from draft_service.draft_origin import ORIGIN_FILE, DraftOrigin, read_origin
from draft_service.draft_vocabulary import restrict_head, spread_logits
from draft_service.shipped_drafts import shipped_drafts
from draft_service.state_guess import NAME, StateGuess, guess_width
from draft_service.target_tensors import (
    embeddings_name,
    head_name,
    read_embeddings,
    read_tensors,
    sha256_of,
    target_name,
)
from specdec.features import MAX_KEPT_BYTES, feature_bytes
from specdec.kernels.few_rows import pack_for_few_rows, packed_dtype
from specdec.kernels.int8 import has_int8
from specdec.kernels.replacing import give_kernels
from specdec.models.architecture import check_architecture, read_config
from specdec.models.description import ModelDescription, read_description
from specdec.models.errors import ModelError, first_line
from specdec.models.invariance import make_invariant
from specdec.models.loading import LoadedModel, choose_device, choose_dtype, context_length
from specdec.models.probe import probe_ragged_batch
from specdec.models.progress import Report, default_report
from specdec.models.source import provide_model
from specdec.runner.attention import ATTENTION_NAME
from specdec.settings import LinearKernel
from specdec.tokenizer_files import tokenizer_hash
from specdec.v1 import model_pb2

_WEIGHTS = "model.safetensors"
_CONFIG = "config.json"
_VOCAB = "draft_vocab"
_INSTEAD = (
    "name a draft of {0} with --model, train one with `specdec train-draft`, or draft without a model; if the draft's "
    "own target was meant, name it with --target-model"
)


def draft_files(
    student: PreTrainedModel,
    draft_vocab: torch.Tensor,
    origin: DraftOrigin,
    config: PreTrainedConfig,
    target_directory: Path,
) -> dict[str, bytes]:
    """What `load_trained_draft` reads, by file name.

    Args:
        student: with a restricted head; without the lower layers.
        draft_vocab: (draft_vocab_size,), int64.
        origin: of the draft.
        config: of a model with all layers of the draft.
        target_directory: files of the target.

    Raises:
        ModelError: layers of the target lie in its files in another form than in its model, so that they cannot be
            read from there.
    """
    state, own = student.state_dict(), own_tensors(student)
    tensors = {}
    for name in own:
        place = target_name(student, name, range(origin.num_lower_layers, len(origin.layers)))
        tensors[place] = own[name].to("cpu", torch.float16).contiguous()
    upper = origin.layers[origin.num_lower_layers :]
    shared = {target_name(student, name, upper) for name in state.keys() - own.keys()} - {head_name(student)}
    missing = shared - read_tensors(target_directory, student, shared).keys()
    if missing:
        raise ModelError(
            f"the weights in {target_directory} have no {min(missing)}, so a draft cannot read it from there; train "
            "one that reads tokens alone, with --upper-layers 0"
        )
    tensors[_VOCAB] = draft_vocab.to("cpu", torch.int32)
    return {
        _WEIGHTS: save(tensors, {"format": "pt"}),
        _CONFIG: config.to_json_string().encode(),
        ORIGIN_FILE: origin.to_json(),
    }


def own_tensors(student: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What a student has of its own: all but what is not trained, which is the target's. The tensors are not copied."""
    shared = {name for name, parameter in student.named_parameters() if not parameter.requires_grad}
    return {name: tensor for name, tensor in student.state_dict().items() if name not in shared}


def is_trained_draft(name: str) -> bool:
    """Whether a model's name is that of a draft that comes with this package, or of a directory with a trained one."""
    return bool(name) and (_directory(name) / ORIGIN_FILE).is_file()


def reads_features(name: str) -> bool:
    """Whether a model's name is that of a trained draft which needs the target's hidden states.

    Raises:
        ModelError: its directory is damaged.
    """
    return is_trained_draft(name) and bool(read_origin(_directory(name)).features)


def load_trained_draft(
    name: str,
    *,
    target: str = "",
    dtype: str = "auto",
    device: str = "auto",
    max_context_length: int = 0,
    linear_kernel: LinearKernel = "default",
    report: Report | None = None,
) -> LoadedModel:
    """Load a trained draft with what it shares with its target. Blocks.

    Its logits span the target's vocabulary and are -inf outside the draft vocabulary.

    Args:
        name: of a draft that comes with this package, or its directory.
        target: name of its target; empty: the one it was trained with.
        dtype: as for `load_model`; with auto, weights on CPU are packed (see `pack_for_few_rows`), unless
            `linear_kernel` is invariant.
        device: as for `load_model`.
        max_context_length: as for `load_model`.
        linear_kernel: as for `load_model`; without effect on packed weights.
        report: told of slow steps, if the target is still to be fetched.

    Raises:
        ModelError: a file is damaged, or the target is not the one that the draft was trained for.
    """
    directory = _directory(name)
    origin = read_origin(directory)
    torch_device = choose_device(device)
    target_called = target or origin.target
    target_directory = provide_model(target_called, report or default_report())
    description = read_description(target_directory)
    found_hash = tokenizer_hash(description.tokenizer_files)
    if found_hash != origin.tokenizer_hash:
        raise ModelError(
            f"the draft {name} was trained for the tokenizer of {origin.target} (hash {origin.tokenizer_hash[:16]}), "
            f"and {target_called} has another one (hash {found_hash[:16]}); {_INSTEAD.format(target_called)}"
        )
    config = read_config(directory)
    check_architecture(config)
    is_packed = dtype == "auto" and linear_kernel != "invariant" and has_int8(torch_device)
    with no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=choose_dtype(dtype, torch_device), attn_implementation=ATTENTION_NAME
        )
    if sha256_of(read_embeddings(target_directory, model)) != origin.embeddings_sha256:
        raise ModelError(
            f"the embeddings of {target_called} are not those of {origin.target} that the draft {name} was trained "
            f"with; {_INSTEAD.format(target_called)}"
        )
    if origin.features:
        guess = StateGuess(config.hidden_size, guess_width(config), origin.num_lower_layers, dtype=model.dtype)
        model.add_module(NAME, guess)
    draft_vocab = _load_tensors(directory, model, origin, target_directory, description)
    model.to(torch_device)
    model.train(mode=False)
    model.requires_grad_(requires_grad=False)
    length = context_length(name, config, max_context_length)
    if not is_packed:
        give_kernels(model, linear_kernel)
    # Before the logits are spread: the probe wants finite ones.
    probe_ragged_batch(model, description.vocab_size, length)
    if is_packed:
        pack_for_few_rows(model)
    if linear_kernel == "invariant":
        make_invariant(model, len(draft_vocab))
    spread_logits(model, draft_vocab.to(torch_device), description.vocab_size)
    plain_type = str(model.dtype).removeprefix("torch.")
    info = model_pb2.ModelInfo(
        model_id=name,
        tokenizer_hash=found_hash,
        vocab_size=description.vocab_size,
        max_context_length=length,
        dtype=packed_dtype(model) if is_packed else plain_type,
        device=str(model.device),
        hidden_size=config.hidden_size if origin.features else 0,
        feature_states=origin.features,
        max_feature_tokens=MAX_KEPT_BYTES // feature_bytes(len(origin.features), config.hidden_size)
        if origin.features
        else 0,
    )
    return LoadedModel(model, info, description.tokenizer_files)


def _directory(name: str) -> Path:
    return shipped_drafts().get(name) or Path(name).expanduser()


def _load_tensors(
    directory: Path,
    model: PreTrainedModel,
    origin: DraftOrigin,
    target_directory: Path,
    description: ModelDescription,
) -> torch.Tensor:
    """Fill a model with the draft's own tensors and the target's; returns the draft vocabulary."""
    path = directory / _WEIGHTS
    try:
        tensors = load(path.read_bytes())
        draft_vocab = tensors.pop(_VOCAB).long()
        _check_vocab(draft_vocab.tolist(), description.vocab_size)
        restrict_head(model, draft_vocab)
        names = {name: target_name(model, name, origin.layers) for name in model.state_dict().keys() - tensors.keys()}
        if not origin.features and names.keys() != {embeddings_name(model)}:
            raise ValueError("a draft that reads tokens alone has all layers of its own")
        shared = read_tensors(target_directory, model, {*names.values(), embeddings_name(model)})
        head = head_name(model)
        # A target whose head is its embeddings has no tensor of that name.
        shared.setdefault(head, shared[embeddings_name(model)])
        for name, found in names.items():
            is_of_head = name.rpartition(".")[0] == head.rpartition(".")[0]
            tensors[name] = shared[found][draft_vocab] if is_of_head else shared[found]
        model.load_state_dict(tensors)
    except Exception as error:
        raise ModelError(
            f"{path} does not fit its config.json or its target ({first_line(error)}); get an intact copy of the draft"
        ) from error
    return draft_vocab


def _check_vocab(token_ids: Sequence[int], vocab_size: int) -> None:
    if not token_ids or token_ids != sorted(set(token_ids)) or token_ids[0] < 0 or token_ids[-1] >= vocab_size:
        raise ValueError("the draft vocabulary is not a list of the target's token ids")
