"""Loading a model that can be served, with the facts that peers check."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from specdec.engine.limits import LARGEST_CONTEXT_LENGTH
from specdec.kernels.available import drawing_kernels
from specdec.kernels.few_rows import join_for_few_rows
from specdec.kernels.int4 import INT4, check_int4, pack_int4
from specdec.kernels.replacing import give_kernels
from specdec.models.architecture import max_positions
from specdec.models.description import ModelDescription, read_description
from specdec.models.errors import ModelError
from specdec.models.fingerprint import weights_fingerprint
from specdec.models.invariance import make_invariant
from specdec.models.probe import probe_ragged_batch
from specdec.models.progress import Report, default_report
from specdec.models.source import provide_model
from specdec.models.weights import load_weights
from specdec.settings import LinearKernel
from specdec.tokenizer_files import TokenizerFiles, tokenizer_hash
from specdec.v1 import model_pb2

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model, ready to run ragged batches."""

    model: PreTrainedModel
    """In eval mode, without gradients. Its sampling defaults (generation_config) are for nobody: requests say all."""
    info: model_pb2.ModelInfo
    """Facts of the model; protocol version, limits and rules are for the service to add."""
    tokenizer_files: TokenizerFiles


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    max_context_length: int = 0,
    linear_kernel: LinearKernel = "default",
    report: Report | None = None,
) -> LoadedModel:
    """Find, fetch, convert, check and load a model. Takes seconds to minutes: never call it on an event loop.

    Args:
        name: embedded model, .gguf file, directory or Hugging Face id.
        dtype: float32, bfloat16, float16, int4 (weights of a GGUF file that stay packed, on CPU), or auto: float32 on
            CPU and bfloat16 on CUDA.
        device: cpu, cuda, cuda:N, auto: CUDA if there is one, or several that share the layers, such as cuda:0,cuda:1.
        max_context_length: longest sequence to serve, in tokens; 0 is the model's own limit, which it never exceeds.
        linear_kernel: what multiplies on a CPU, see `give_kernels` and `make_invariant`.
        report: told of slow steps; None is a bar on a terminal and a log line elsewhere.

    Raises:
        ModelError: the model cannot be had or cannot be served, with what to do.
    """
    devices = choose_devices(device)
    if dtype == "int4":
        check_int4(devices[0])
    torch_dtype = torch.float32 if dtype == "int4" else choose_dtype(dtype, devices[0])
    directory = provide_model(name, report or default_report())
    description = read_description(directory)
    length = context_length(name, description.config, max_context_length)
    model = load_weights(directory, description.config, torch_dtype, *devices)
    served_dtype = INT4 if dtype == "int4" else str(model.dtype).removeprefix("torch.")
    fingerprint = weights_fingerprint(model, served_dtype)
    if dtype == "int4":
        pack_int4(model)
    has_few_calls = False
    if linear_kernel == "auto" and dtype != "int4":
        # The probe runs the model's own layers, too.
        probe_ragged_batch(model, description.vocab_size, length)
        has_few_calls = join_for_few_rows(model)
    give_kernels(model, linear_kernel)
    if model.device.type == "cpu":
        drawing_kernels()  # Compiled now, and not when the first request draws a token.
    if not has_few_calls:
        probe_ragged_batch(model, description.vocab_size, length)
    if linear_kernel == "invariant":
        make_invariant(model, description.vocab_size)
    info = model_pb2.ModelInfo(
        model_id=name,
        tokenizer_hash=tokenizer_hash(description.tokenizer_files),
        vocab_size=description.vocab_size,
        max_context_length=length,
        dtype=served_dtype,
        device=",".join(map(str, devices)),
        stop_token_ids=_stop_token_ids(model, description),
        weights_fingerprint=fingerprint,
    )
    return LoadedModel(model, info, description.tokenizer_files)


def choose_devices(name: str) -> tuple[torch.device, ...]:
    """The device that a setting means, or several that share a model.

    Raises:
        ModelError: no such device on this machine, or one that cannot share a model, or twice the same.
    """
    names = name.split(",")
    if len(names) == 1:
        return (choose_device(name),)
    if len(set(names)) < len(names) or not all(re.fullmatch(r"cuda:\d+", each) for each in names):
        raise ModelError(f"device {name!r}: a model is shared by GPUs, each named once, such as cuda:0,cuda:1")
    return tuple(map(choose_device, names))


def choose_device(name: str) -> torch.device:
    """The one device that a setting means.

    Raises:
        ModelError: no such device on this machine.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ModelError(f"device {name!r} is not served; choose cpu, cuda, cuda:N or auto")
    index = device.index or 0
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        raise ModelError(f"device {name!r} was asked for and {count} CUDA devices are usable; choose cpu or auto")
    return torch.device("cuda", index)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The element type that a setting means on a device.

    Raises:
        ModelError: no such type.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ModelError(f"dtype {name!r} is not served; choose {', '.join(_DTYPES)} or auto")
    return _DTYPES[name]


def context_length(name: str, config: PreTrainedConfig, setting: int) -> int:
    """Longest sequence to serve: the setting (0: none), within what the model was made for.

    Raises:
        ModelError: neither of them is known.
    """
    own = max_positions(config)
    if own is None and setting == 0:
        raise ModelError(f"the config of {name} names no longest sequence; set --max-context-length")
    return min(length for length in (own, setting, LARGEST_CONTEXT_LENGTH) if length)


def _stop_token_ids(model: PreTrainedModel, description: ModelDescription) -> list[int]:
    """Ids that end a generation: of the tokenizer and of the generation config together, as far as they exist."""
    eos_token = description.tokenizer_files.special_tokens.get("eos_token")
    of_tokenizer = None if eos_token is None else description.tokenizer_files.tokenizer().token_to_id(eos_token)
    of_generation = getattr(model.generation_config, "eos_token_id", None)
    found = {of_tokenizer, *(of_generation if isinstance(of_generation, list) else [of_generation])}
    # A padding row can never be generated, so an id there would never stop anything.
    return sorted(each for each in found if isinstance(each, int) and 0 <= each < description.vocab_size)
