from pathlib import Path

import torch

from benchmarks.simulation.stand_in import MAX_LENGTH, save_stand_in
from specdec.models.loading import load_model
from specdec.runner.cache import SequenceCache
from specdec.runner.runner import ModelRunner, Work


def test_a_stand_in_can_be_served(tmp_path: Path) -> None:
    loaded = load_model(str(save_stand_in(tmp_path / "new" / "model")), device="cpu")
    assert (loaded.info.vocab_size, loaded.info.max_context_length) == (257, MAX_LENGTH)
    tokenizer = loaded.tokenizer_files.tokenizer()
    text = "Tell me, naïve one: why?"
    token_ids = tokenizer.encode(text).ids
    assert len(token_ids) == len(text.encode())
    assert tokenizer.decode(token_ids) == text
    assert list(loaded.info.stop_token_ids) == [0]
    runner = ModelRunner(loaded.model, loaded.info.vocab_size)
    (logits,) = runner.forward([Work(SequenceCache(), token_ids, len(token_ids))])
    best = logits.topk(2, dim=-1).values
    assert float((best[:, 0] - best[:, 1]).min()) > 1e-3, "drafts that agree must not hang on rounding"
    assert len(set(logits.argmax(-1).tolist())) > 5, "and the text must depend on what came before"
    assert torch.isfinite(logits).all()
