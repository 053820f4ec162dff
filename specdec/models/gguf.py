"""GGUF files: converted once to safetensors by transformers, then loaded from the cache like any other model."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from specdec.models import cache
from specdec.models.errors import ModelError, first_line
from specdec.models.hashes import remembered_sha256
from specdec.models.progress import Report
from specdec.tokenizer_files import SPECIAL_TOKEN_NAMES, TokenizerFiles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMAT = 1
"""Part of every key; raised when a conversion of today would not be used any more."""
_STEPS = 4
_FLOAT32_BYTES = 4
_FIRST_GOOD_TRANSFORMERS = "5.18"
"""Earlier ones read the tokenizer of a GGUF file wrongly: the end token, and leading spaces."""


def entry_key(name: str, content_sha256: str) -> str:
    """Key in the cache of what a GGUF file with that content converts to."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}-{content_sha256[:16]}-v{_FORMAT}"


def converted_directory(gguf: Path) -> Path | None:
    """Where the conversion of a GGUF file lies, or None if it is still to be made."""
    return cache.entry_directory(entry_key(gguf.stem, _content_sha256(gguf)))


def make_converted_directory(gguf: Path, report: Report) -> Path:
    """The conversion of a GGUF file, made now if it is not in the cache.

    Raises:
        ModelError: the file cannot be read or converted, or there is no room for the result.
    """
    return cache.make_entry(
        entry_key(gguf.stem, _content_sha256(gguf)),
        lambda directory: convert(gguf, directory, report),
        room_bytes=gguf.stat().st_size,
    )


def convert(gguf: Path, directory: Path, report: Report) -> None:
    """Write config, generation config, float32 weights and tokenizer of a GGUF file into an existing directory.

    Raises:
        ModelError: transformers does not know the architecture, the model cannot be served, or the disk is full.
    """
    # Seconds to import, so only here: a process whose models are converted, or that only lists them, has no use for it.
    import torch
    import transformers
    from packaging.version import Version
    from safetensors import SafetensorError

    from specdec.models.architecture import check_architecture, check_sizes
    from specdec.models.weights import check_complete

    if Version(transformers.__version__) < Version(_FIRST_GOOD_TRANSFORMERS):
        raise ModelError(
            f"transformers {transformers.__version__} misreads the tokenizers of GGUF files; to convert {gguf.name} "
            f"install {_FIRST_GOOD_TRANSFORMERS} or later (the converted model runs with this one too)"
        )
    place, file = str(gguf.parent), gguf.name
    # The bars that transformers prints stay off the terminal and out of the logs.
    with report(f"converting {gguf.name}", _STEPS) as advance, contextlib.redirect_stderr(io.StringIO()):
        try:
            config = transformers.AutoConfig.from_pretrained(place, gguf_file=file, local_files_only=True)
            advance(1)
            check_sizes(config)
            check_architecture(config)
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, gguf_file=file, local_files_only=True)
            advance(2)
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
                place,
                gguf_file=file,
                config=config,
                dtype=torch.float32,
                quantization_config=transformers.GgufConfig(dequantize=True),
                output_loading_info=True,
                local_files_only=True,
            )
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{gguf} cannot be converted ({first_line(error)}); give a GGUF file of a decoder that "
                f"transformers {transformers.__version__} reads, or the model's safetensors directory"
            ) from error
        model, loading_info = loaded
        check_complete(str(gguf), loading_info)
        advance(3)
        cache.check_room(directory, model.num_parameters() * _FLOAT32_BYTES)
        # Dequantised, it is an ordinary model; transformers would not save one that its GGUF quantizer still owns.
        model.hf_quantizer = None
        model.config.__dict__.pop("quantization_config", None)
        try:
            model.save_pretrained(directory)
        except SafetensorError as error:
            if "os error 28" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
        _tokenizer_files(tokenizer, config.get_text_config(decoder=True).vocab_size).save(directory)
        for path in filter(Path.is_file, directory.iterdir()):
            # safetensors writes for the owner alone, but a cache may be filled by one user and read by another.
            path.chmod(0o644)
        advance(_STEPS)


def _tokenizer_files(tokenizer: PreTrainedTokenizerBase, rows: int) -> TokenizerFiles:
    """Files of the tokenizer that the GGUF file carries.

    transformers adds special tokens that some converters expect; if the file does not have them they get ids beyond the
    model's rows, and are left out again.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < rows]
    tokenizer_json = json.dumps(content, ensure_ascii=False).encode("utf-8")
    special_tokens = {name: getattr(tokenizer, name) for name in SPECIAL_TOKEN_NAMES}
    known = Tokenizer.from_buffer(tokenizer_json)
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=tokenizer.chat_template or "",
        special_tokens={
            name: text for name, text in special_tokens.items() if text and known.token_to_id(text) is not None
        },
    )


def _content_sha256(gguf: Path) -> str:
    try:
        return remembered_sha256(gguf)
    except OSError as error:
        raise ModelError(f"{gguf} cannot be read ({error.strerror}); give the path of a GGUF file") from error
