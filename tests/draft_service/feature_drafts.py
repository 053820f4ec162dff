"""Drafts that read features: an engine around a tiny one, and what it should guess, computed the slow way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.feature_runner import FeatureRunner
from draft_service.state_guess import StateGuess, state_guess
from specdec.engine.memory import CacheMemory
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.pool import KVPool
from specdec.runner.runner import Work
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.v1 import model_pb2
from tests.draft_service.driving import Client, Engine
from tests.draft_service.training.running import lively_student
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

NUM_STATES = 1
HIDDEN_SIZE = 32


def feature_draft() -> PreTrainedModel:
    """Two upper layers of three, all tokens, and guesses in which everything has a say."""
    student = lively_student(tiny_llama(layers=3), (1, 2), torch.arange(TINY_VOCAB_SIZE))
    student.requires_grad_(requires_grad=False)
    return student


def random_features(num_tokens: int, seed: int) -> torch.Tensor:
    """(tokens, states, hidden_size), bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((num_tokens, NUM_STATES, HIDDEN_SIZE), generator=generator).bfloat16()


def wire(features: torch.Tensor) -> bytes:
    """As verdicts carry them."""
    data: bytes = features.view(torch.uint16).numpy().astype("<u2").tobytes()
    return data


class RecordingFeatureRunner(FeatureRunner):
    """Notes the rows of every sequence in every pass."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, guess: StateGuess) -> None:
        super().__init__(model, vocab_size, guess)
        self.passes: list[list[int]] = []

    def forward(self, batch: Sequence[Work]) -> list[torch.Tensor]:
        self.passes.append([len(work.token_ids) for work in batch])
        return super().forward(batch)


class FeatureEngine(Engine):
    """The engine with a draft that reads features."""

    def __init__(
        self, *, memory: CacheMemory | None = None, max_batch_rows: int = 64, max_feature_tokens: int = 1000
    ) -> None:
        model = feature_draft()
        model.set_attn_implementation(ATTENTION_NAME)
        guess = state_guess(model)
        assert guess is not None
        self.runner = RecordingFeatureRunner(model, TINY_VOCAB_SIZE, guess)
        info = model_pb2.ModelInfo(
            vocab_size=TINY_VOCAB_SIZE,
            max_context_length=512,
            max_num_draft_tokens=8,
            max_num_sequences=16,
            acceptance_rules=ACCEPTANCE_RULES,
            hidden_size=HIDDEN_SIZE,
            feature_states=[1],
            max_feature_tokens=max_feature_tokens,
        )
        self.memory = memory or CacheMemory(KVPool(256))
        self.drafter = CausalLMDrafter(
            self.runner,
            info,
            torch.device("cpu"),
            self.memory,
            prefill_chunk_rows=max_batch_rows,
            max_batch_rows=max_batch_rows,
            max_law_size=16,
        )
        super().__init__(self.drafter)

    def lose_cache(self, client: Client) -> None:
        """As when an older sequence needs the memory."""
        self.drafter._states[id(self.engine._sequences[client.connection][client.sequence_id])].cache.release()


class SlowDraft:
    """One sequence as a draft with features should see it: all rows are run again for every token, without a cache.

    A row reads the target's state, or a guess from the state before it; which one depends on what was known when it
    was first run.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.features: dict[int, torch.Tensor] = {}
        """States of the target by their position; (hidden_size,)."""
        self.rows: list[torch.Tensor] = []
        """What was read at the first positions; each (hidden_size,)."""
        self._model = feature_draft()
        self._model.set_attn_implementation("eager")

    def take(self, features: torch.Tensor, num_accepted: int) -> None:
        """After the client's commit: features of the last tokens but one, and how many draft tokens were right."""
        end = len(self.client.token_ids) - 1
        self.features |= {end - len(features) + place: each[-1].float() for place, each in enumerate(features)}
        # Of those and of the token before them the target has told its states, or not.
        first = end - num_accepted - 1
        del self.rows[first if all(row in self.features for row in range(first, end)) else end :]

    def lose(self) -> None:
        """Everything is computed again, of what is known now."""
        self.rows.clear()

    def drafts(self, count: int, drafted: Sequence[int] = ()) -> list[int]:
        """What the next draft tokens should be, behind some that are there."""
        committed = self.client.token_ids
        path = list(drafted)
        # The next tokens may be others than last time.
        del self.rows[len(committed) :]
        while len(self.rows) < len(committed) + len(path):
            self._run([*committed, *path])
        chooser = TokenChooser(self.client.params, self.client.prompt_length, torch.device("cpu"))
        while len(path) < len(drafted) + count:
            if len(self.rows) < len(committed) + len(path):
                self._run([*committed, *path])
            with torch.no_grad():
                logits = self._model(inputs_embeds=torch.stack(self.rows)[None], use_cache=False).logits[0, -1]
            path.append(chooser.choose(logits, committed, path))
        return path[len(drafted) :]

    @torch.no_grad()
    def _run(self, text: Sequence[int]) -> None:
        """One more row; it guesses from the target's state before it. A draft token's does from what was read there."""
        place = len(self.rows)
        before = self.features.get(place - 1) if place < len(self.client.token_ids) else self.rows[-1]
        guess = state_guess(self._model)
        assert guess is not None
        embedding = self._model.get_input_embeddings()(torch.tensor(text[place]))
        guessed = guess(embedding, torch.zeros(HIDDEN_SIZE) if before is None else before)
        self.rows.append(self.features.get(place, guessed))
