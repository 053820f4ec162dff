"""What is offered as invariant is checked when it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec.models.errors import ModelError
from specdec.models.loading import load_model
from specdec.runner.cache import SequenceCache
from specdec.runner.row_attention import ROW_ATTENTION_NAME
from specdec.runner.runner import ModelRunner, Work
from tests.specdec.models.saved_models import save_tiny_model


def test_an_invariant_model(tmp_path: Path) -> None:
    loaded = load_model(str(save_tiny_model(tmp_path / "tiny")), device="cpu", linear_kernel="invariant")
    assert loaded.model.config._attn_implementation == ROW_ATTENTION_NAME
    runner = ModelRunner(loaded.model, loaded.info.vocab_size)
    token_ids = list(range(2, 50))
    (together,) = runner.forward([Work(SequenceCache(), token_ids, 48)])
    cache = SequenceCache()
    apart = [runner.forward([Work(cache, [token_id], 1)])[0] for token_id in token_ids]
    assert torch.equal(torch.cat(apart), together)


def test_a_model_that_is_not_invariant_after_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Attention that takes the rows together.
    monkeypatch.setattr("specdec.models.invariance.ROW_ATTENTION_NAME", "specdec_ragged")
    directory = save_tiny_model(tmp_path / "tiny")
    with pytest.raises(ModelError, match="llama gives other bits for the same row in another batch"):
        load_model(str(directory), device="cpu", linear_kernel="invariant")
