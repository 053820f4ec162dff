"""Draft models that were trained here: a few layers and a short LM head. The embeddings are the target's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, save
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from draft_service.draft_vocabulary import restrict_head, spread_logits
from draft_service.shipped_drafts import shipped_drafts
from draft_service.state_guess import NAME, StateGuess, guess_width, state_guess
from specdec.features import MAX_BYTES, feature_bytes
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

_ORIGIN = "draft.json"
_WEIGHTS = "model.safetensors"
_CONFIG = "config.json"
_VOCAB = "draft_vocab"
_FORMAT = 2
_INSTEAD = (
    "name a draft of {0} with --model, train one with `specdec train-draft`, or draft without a model; if the draft's "
    "own target was meant, name it with --target-model"
)


@dataclass(frozen=True)
class DraftOrigin:
    """Which target a draft was trained for, and from what it was made."""

    target: str
    """Name that the target was given by."""
    tokenizer_hash: str
    embeddings_sha256: str
    """Of the target's embeddings as they lie in its file; the draft does not work with any others."""
    layers: tuple[int, ...]
    """Of the target, that the draft began with."""
    features: tuple[int, ...]
    """Hidden states of the target that the draft reads; none: it reads tokens alone."""
    seed: int


def draft_files(student: PreTrainedModel, draft_vocab: torch.Tensor, origin: DraftOrigin) -> dict[str, bytes]:
    """What `load_trained_draft` reads, by file name.

    Args:
        student: with a restricted head.
        draft_vocab: (draft_vocab_size,), int64.
        origin: of the draft.
    """
    tensors = {name: tensor.to("cpu", torch.float16).contiguous() for name, tensor in own_tensors(student).items()}
    tensors[_VOCAB] = draft_vocab.to("cpu", torch.int32)
    config: PreTrainedConfig = student.config
    return {
        _WEIGHTS: save(tensors, {"format": "pt"}),
        _CONFIG: config.to_json_string().encode(),
        _ORIGIN: json.dumps({"format": _FORMAT, **asdict(origin)}, indent=2).encode(),
    }


def is_trained_draft(name: str) -> bool:
    """Whether a model's name is that of a draft that comes with this package, or of a directory with a trained one."""
    return bool(name) and (_directory(name) / _ORIGIN).is_file()


def reads_features(name: str) -> bool:
    """Whether a model's name is that of a trained draft which needs the target's hidden states.

    Raises:
        ModelError: its directory is damaged.
    """
    return is_trained_draft(name) and bool(_read_origin(_directory(name)).features)


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
    """Load a trained draft with the embeddings of its target. Blocks; of the target's weights it reads no others.

    Its logits span the target's vocabulary and are -inf outside the draft vocabulary.

    Args:
        name: of a draft that comes with this package, or its directory.
        target: name of its target; empty: the one it was trained with.
        dtype: as for `load_model`.
        device: as for `load_model`.
        max_context_length: as for `load_model`.
        linear_kernel: as for `load_model`.
        report: told of slow steps, if the target is still to be fetched.

    Raises:
        ModelError: a file is damaged, or the target is not the one that the draft was trained for.
    """
    directory = _directory(name)
    origin = _read_origin(directory)
    torch_device = choose_device(device)
    target_name = target or origin.target
    target_directory = provide_model(target_name, report or default_report())
    description = read_description(target_directory)
    found_hash = tokenizer_hash(description.tokenizer_files)
    if found_hash != origin.tokenizer_hash:
        raise ModelError(
            f"the draft {name} was trained for the tokenizer of {origin.target} (hash {origin.tokenizer_hash[:16]}), "
            f"and {target_name} has another one (hash {found_hash[:16]}); {_INSTEAD.format(target_name)}"
        )
    config = read_config(directory)
    check_architecture(config)
    with no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=choose_dtype(dtype, torch_device), attn_implementation=ATTENTION_NAME
        )
    embeddings = read_embeddings(target_directory, model)
    if sha256_of(embeddings) != origin.embeddings_sha256:
        raise ModelError(
            f"the embeddings of {target_name} are not those of {origin.target} that the draft {name} was trained "
            f"with; {_INSTEAD.format(target_name)}"
        )
    if origin.features:
        model.add_module(NAME, StateGuess(config.hidden_size, guess_width(config), dtype=model.dtype))
    head = _read_head(target_directory, model, embeddings) if origin.features else None
    draft_vocab = _load_tensors(directory, model, embeddings, head, description)
    model.to(torch_device)
    model.train(mode=False)
    model.requires_grad_(requires_grad=False)
    give_kernels(model, linear_kernel)
    length = context_length(name, config, max_context_length)
    # Before the logits are spread: the probe wants finite ones.
    probe_ragged_batch(model, description.vocab_size, length)
    if linear_kernel == "invariant":
        make_invariant(model, len(draft_vocab))
    spread_logits(model, draft_vocab.to(torch_device), description.vocab_size)
    info = model_pb2.ModelInfo(
        model_id=name,
        tokenizer_hash=found_hash,
        vocab_size=description.vocab_size,
        max_context_length=length,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        hidden_size=config.hidden_size if origin.features else 0,
        feature_states=origin.features,
        max_feature_tokens=MAX_BYTES // feature_bytes(len(origin.features), config.hidden_size)
        if origin.features
        else 0,
    )
    return LoadedModel(model, info, description.tokenizer_files)


def own_tensors(draft: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What a draft has of its own: everything but the target's embeddings, and LM head if the draft reads its states.

    The tensors are not copied.
    """
    shared = {_name_of(draft, draft.get_input_embeddings())}
    if state_guess(draft) is not None:
        shared.add(_name_of(draft, _head(draft)))
    return {name: tensor for name, tensor in draft.state_dict().items() if name not in shared}


def read_embeddings(directory: Path, model: PreTrainedModel) -> torch.Tensor:
    """The input embeddings in the weights of a target; (rows, hidden_size), in the file's own type.

    Args:
        directory: of the target.
        model: of the same family; its names are looked for.

    Raises:
        ModelError: the tensor is not there.
    """
    tensor = _read_tensor(directory, model, _name_of(model, model.get_input_embeddings()))
    if tensor is None:
        raise ModelError(f"the weights in {directory} have no input embeddings, so no draft can share them")
    return tensor


def _read_head(directory: Path, model: PreTrainedModel, embeddings: torch.Tensor) -> torch.Tensor:
    """The LM head in the weights of a target; its embeddings, if it has no head of its own."""
    tensor = _read_tensor(directory, model, _name_of(model, _head(model)))
    return embeddings if tensor is None else tensor


def _read_tensor(directory: Path, model: PreTrainedModel, name: str) -> torch.Tensor | None:
    # Some files name the tensors of the decoder without the prefix that it has inside the model with a head.
    names = {name, name.removeprefix(f"{model.base_model_prefix}.")}
    try:
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for found in names.intersection(file.keys()):
                    tensor: torch.Tensor = file.get_tensor(found)
                    return tensor
    except Exception as error:
        raise ModelError(f"the weights in {directory} cannot be read ({first_line(error)}); get them again") from error
    return None


def sha256_of(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's bytes, in hex."""
    flat: Any = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(flat).hexdigest()


def _directory(name: str) -> Path:
    return shipped_drafts().get(name) or Path(name).expanduser()


def _read_origin(directory: Path) -> DraftOrigin:
    path = directory / _ORIGIN
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        made_in = content.pop("format")
        if made_in == _FORMAT:
            return DraftOrigin(
                **{**content, "layers": tuple(content["layers"]), "features": tuple(content["features"])}
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read ({first_line(error)}); get an intact copy of the draft") from error
    raise ModelError(f"{path} has format {made_in} and this version reads {_FORMAT}; train the draft again")


def _load_tensors(
    directory: Path,
    model: PreTrainedModel,
    embeddings: torch.Tensor,
    head: torch.Tensor | None,
    description: ModelDescription,
) -> torch.Tensor:
    """Fill a model with the draft's own tensors and the target's; returns the draft vocabulary."""
    path = directory / _WEIGHTS
    try:
        tensors = load(path.read_bytes())
        draft_vocab = tensors.pop(_VOCAB).long()
        _check_vocab(draft_vocab.tolist(), description.vocab_size)
        restrict_head(model, draft_vocab)
        tensors[_name_of(model, model.get_input_embeddings())] = embeddings
        if head is not None:
            tensors[_name_of(model, _head(model))] = head[draft_vocab]
        model.load_state_dict(tensors)
    except Exception as error:
        raise ModelError(
            f"{path} does not fit its config.json or its target ({first_line(error)}); get an intact copy of the draft"
        ) from error
    return draft_vocab


def _check_vocab(token_ids: Sequence[int], vocab_size: int) -> None:
    if not token_ids or token_ids != sorted(set(token_ids)) or token_ids[0] < 0 or token_ids[-1] >= vocab_size:
        raise ValueError("the draft vocabulary is not a list of the target's token ids")


def _head(model: PreTrainedModel) -> object:
    holder: Any = model
    return holder.get_output_embeddings()


def _name_of(model: PreTrainedModel, module: object) -> str:
    """Name of the weight of a module."""
    return next(f"{name}.weight" for name, each in model.named_modules() if each is module)
