"""Drafts that read features: an engine around a tiny one, and what it should guess, computed the slow way."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.feature_input import FeatureInput, feature_input
from draft_service.feature_runner import FeatureRunner
from specdec.engine.memory import CacheMemory
from specdec.runner.attention import ATTENTION_NAME
from specdec.runner.hidden_states import layer_list
from specdec.runner.pool import KVPool
from specdec.runner.runner import Work
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.v1 import model_pb2
from tests.draft_service.driving import Client, Engine
from tests.draft_service.training.running import lively_student
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

NUM_STATES = 2
HIDDEN_SIZE = 32


def feature_draft() -> PreTrainedModel:
    """Two layers, all tokens, features of two states; everything has a say."""
    student = lively_student(tiny_llama(), (0, 1), torch.arange(TINY_VOCAB_SIZE), NUM_STATES)
    student.requires_grad_(requires_grad=False)
    return student


def random_features(num_tokens: int, seed: int) -> torch.Tensor:
    """(tokens, states, hidden_size), float16."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((num_tokens, NUM_STATES, HIDDEN_SIZE), generator=generator).half()


def wire(features: torch.Tensor) -> bytes:
    """As verdicts carry them."""
    data: bytes = features.numpy().tobytes()
    return data


class RecordingFeatureRunner(FeatureRunner):
    """Notes the rows of every sequence in every pass."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, inputs: FeatureInput) -> None:
        super().__init__(model, vocab_size, inputs)
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
        inputs = feature_input(model)
        assert inputs is not None
        self.runner = RecordingFeatureRunner(model, TINY_VOCAB_SIZE, inputs)
        info = model_pb2.ModelInfo(
            vocab_size=TINY_VOCAB_SIZE,
            max_context_length=512,
            max_num_draft_tokens=8,
            max_num_sequences=16,
            acceptance_rules=ACCEPTANCE_RULES,
            hidden_size=HIDDEN_SIZE,
            feature_states=range(1, NUM_STATES + 1),
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
    """One sequence as a draft with features should see it: every row is computed again for every token, without a cache.

    What each row reads of the position before it is noted: the target's features, the draft's own state, or nothing.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.features: dict[int, torch.Tensor] = {}
        self.own_rows: set[int] = set()
        self.blank_rows: set[int] = set()
        self.num_rows = 0
        """Of committed tokens that have been run."""
        self._model = copy.deepcopy(feature_draft())
        self._model.set_attn_implementation("eager")
        self._states: list[torch.Tensor] = []
        name = f"{layer_list(self._model)}.{self._model.config.num_hidden_layers - 1}"
        self._model.get_submodule(name).register_forward_hook(self._keep)

    def take(self, features: torch.Tensor, num_accepted: int) -> None:
        """After the client's commit: features of the last tokens but one, and how many draft tokens were right."""
        end = len(self.client.token_ids) - 1
        self.features |= {end - len(features) + place: each for place, each in enumerate(features)}
        first = end - num_accepted
        if all(row - 1 in self.features for row in range(first, end)):
            self.own_rows -= set(range(first, end))
            self.num_rows = min(self.num_rows, first)
        else:
            # They stay as they were drafted; the last draft token was never run.
            drafted = self.own_rows & set(range(first, end))
            self.num_rows = max([self.num_rows, *(row + 1 for row in drafted)])
        self.own_rows -= {row for row in self.own_rows if row >= self.num_rows}

    def lose(self) -> None:
        """Everything is computed again, of what is known now."""
        self.num_rows = 0
        self.own_rows.clear()
        self.blank_rows.clear()

    def drafts(self, count: int, drafted: Sequence[int] = ()) -> list[int]:
        """What the next draft tokens should be, behind some that are there."""
        client = self.client
        committed = client.token_ids
        for row in range(self.num_rows, len(committed)):
            self.own_rows.discard(row)
            (self.blank_rows.discard if row - 1 in self.features else self.blank_rows.add)(row)
        self.num_rows = len(committed)
        chooser = TokenChooser(client.params, client.prompt_length, torch.device("cpu"))
        path = list(drafted)
        while len(path) < len(drafted) + count:
            logits = self._last_logits([*committed, *path])
            path.append(chooser.choose(logits, committed, path))
            if len(path) < len(drafted) + count:
                self.own_rows.add(len(committed) + len(path) - 1)
        return path[len(drafted) :]

    @torch.no_grad()
    def _last_logits(self, text: list[int]) -> torch.Tensor:
        inputs = feature_input(self._model)
        assert inputs is not None
        rows = inputs.of_tokens(self._model.get_input_embeddings()(torch.tensor(text)))
        for row in range(len(text)):
            if row in self.own_rows:
                self._model(inputs_embeds=rows[None, :row], use_cache=False)
                rows[row] += inputs.of_own(self._states[-1][0, row - 1])
            elif row - 1 in self.features and row not in self.blank_rows:
                rows[row] += inputs.of_features(self.features[row - 1].float())
        logits: torch.Tensor = self._model(inputs_embeds=rows[None], use_cache=False).logits[0, -1]
        return logits.float()

    def _keep(self, _module: torch.nn.Module, _arguments: object, output: Any) -> None:
        self._states = [output if isinstance(output, torch.Tensor) else output[0]]
