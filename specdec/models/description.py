"""What a model directory says of the model, weights aside: checked before any weights are fetched or loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedConfig

from specdec.models.architecture import check_architecture, read_config
from specdec.models.errors import ModelError
from specdec.tokenizer_files import TokenizerFiles, TokenizerFilesError, vocab_size


@dataclass(frozen=True)
class ModelDescription:
    """A model that can be served, as far as its small files tell."""

    config: PreTrainedConfig
    tokenizer_files: TokenizerFiles
    vocab_size: int
    """True size: ids that the tokenizer has. The model may have more rows, as padding."""


def read_description(directory: Path) -> ModelDescription:
    """Read and check the config and the tokenizer of a model directory.

    Raises:
        ModelError: a file is missing or damaged, the architecture cannot be served, or tokenizer and model do not fit.
    """
    config = read_config(directory)
    check_architecture(config)
    try:
        tokenizer_files = TokenizerFiles.load(directory)
        size = vocab_size(tokenizer_files)
    except TokenizerFilesError as error:
        raise ModelError(str(error)) from error
    rows = config.get_text_config(decoder=True).vocab_size
    if size > rows:
        raise ModelError(
            f"the tokenizer in {directory} has {size} ids and the model only {rows} rows; "
            "use the tokenizer of this model"
        )
    return ModelDescription(config, tokenizer_files, size)
