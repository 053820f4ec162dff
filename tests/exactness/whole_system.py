"""Target, drafters and orchestrators in one process, over gRPC, with tiny language models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from draft_service.drafters.drafter import Drafter
from draft_service.drafters.making import causal_lm_drafter, combined_drafter, make_drafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.service import DraftService
from draft_service.settings import DraftSettings
from specdec.models.loading import LoadedModel
from specdec.sampling.chooser import TokenChooser
from specdec.sampling.noise import Stream, gumbel, noise_key
from specdec.sampling.params import SamplingParams
from specdec.serving.host import Service, ServiceHost
from specdec.tokenizer_files import tokenizer_hash
from specdec.v1 import model_pb2
from target_service.service import TargetService
from target_service.settings import TargetSettings
from tests.draft_service.training.running import save_target, save_untrained_draft
from tests.orchestrator.running import Running, running
from tests.orchestrator.serving import until
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.tiny_models import EOS_TOKEN_ID, TINY_VOCAB_SIZE, tiny_llama, tiny_tokenizer_files

MAX_NUM_DRAFT_TOKENS = 8
_LIMITS: dict[str, Any] = {"max_num_draft_tokens": MAX_NUM_DRAFT_TOKENS, "max_num_sequences": 256}
_CPU = torch.device("cpu")


def loaded_llama(seed: int) -> LoadedModel:
    """A tiny Llama as a service loads it."""
    files = tiny_tokenizer_files()
    info = model_pb2.ModelInfo(
        model_id=f"llama-{seed}",
        tokenizer_hash=tokenizer_hash(files),
        vocab_size=TINY_VOCAB_SIZE,
        max_context_length=256,
        dtype="float32",
        device="cpu",
        stop_token_ids=[EOS_TOKEN_ID],
    )
    return LoadedModel(tiny_llama(seed), info, files)


def target_service() -> TargetService:
    """Serves the target."""
    return TargetService(TargetSettings(**_LIMITS), lambda: loaded_llama(0))


def draft_service(load: Callable[[], Drafter]) -> DraftService:
    """Serves a drafter."""
    return DraftService(DraftSettings(**_LIMITS), load)


def same_model() -> Drafter:
    """A drafter with the target's own weights."""
    return causal_lm_drafter(loaded_llama(0), DraftSettings(**_LIMITS))


def other_model() -> Drafter:
    """A drafter whose weights have nothing to do with the target's."""
    return causal_lm_drafter(loaded_llama(1), DraftSettings(**_LIMITS))


def short_vocabulary(directory: Path) -> Drafter:
    """A drafter as training makes them: the target's own layers under a head for every third token, loaded from files.

    Args:
        directory: for the files; empty.
    """
    target = save_target(directory / "target")
    draft = save_untrained_draft(target, tiny_llama(0))
    return make_drafter(DraftSettings(drafter="model", model=str(draft), device="cpu", **_LIMITS))


def reading_features(directory: Path) -> Drafter:
    """The same, reading what the target has in mind.

    Args:
        directory: for the files; empty.
    """
    target = save_target(directory / "target")
    draft = save_untrained_draft(target, tiny_llama(0), reads_states=True)
    return make_drafter(DraftSettings(drafter="model", model=str(draft), device="cpu", **_LIMITS))


def suffix() -> Drafter:
    """A drafter without a model, that goes by any match, in past outputs too."""
    return make_drafter(DraftSettings(drafter="suffix", suffix_min=1, **_LIMITS))


def combined() -> Drafter:
    """The same beside the target's own weights, which are dear, so that lookup makes windows too."""
    return combined_drafter(same_model(), DraftSettings(suffix_min=1, combined_model_cost=3, **_LIMITS))


def prompt_lookup() -> Drafter:
    """A drafter without a model, that goes by a single token."""
    return NgramDrafter(min_length=1, max_length=3, **_LIMITS)


@asynccontextmanager
async def hosted(service: Service) -> AsyncIterator[ServiceHost]:
    """A service on a free port."""
    async with ServiceHost(service, host="127.0.0.1", port=0, drain_seconds=2.0) as host:
        yield host


@asynccontextmanager
async def orchestrator(target: str, draft: str = "", **settings: Any) -> AsyncIterator[Running]:
    """An orchestrator that is connected to the services at these addresses; no draft service if there is none."""
    async with running(target, draft, **settings) as run:
        link = run.service.drafts
        await until(lambda: link is None or link.is_available)
        yield run


@dataclass
class PlainDecoding:
    """What the target alone writes: transformers' own attention, no cache, one token at a time, noise of all tokens.

    Args:
        prompt: token ids.
        params: the request's.
    """

    prompt: list[int]
    params: SamplingParams
    output: list[int] = field(default_factory=list)
    smallest_gap: float = float("inf")
    """Between the two highest scores at any position: what rounding would have to bridge to change a token."""

    def run(self, num_tokens: int) -> None:
        """Write the output."""
        model = tiny_llama(0)
        chooser = TokenChooser(self.params, len(self.prompt), _CPU)
        token_ids = torch.arange(TINY_VOCAB_SIZE)
        while len(self.output) < num_tokens:
            history = [*self.prompt, *self.output]
            scores = chooser.process(plain_logits(model, history)[-1, :TINY_VOCAB_SIZE], history).double()
            if not self.params.is_greedy:
                scores = scores + gumbel(noise_key(self.params.seed, len(history), Stream.TARGET), token_ids)
            best = scores.topk(2)
            self.output.append(int(best.indices[0]))
            self.smallest_gap = min(self.smallest_gap, float(best.values[0] - best.values[1]))
            if self.output[-1] in self.params.stop_token_ids:
                return
