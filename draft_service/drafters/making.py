"""From settings to a drafter."""

from draft_service.drafters.causal_lm import CausalLMDrafter
from draft_service.drafters.combined import CombinedDrafter
from draft_service.drafters.drafter import Drafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.suffix import SuffixDrafter
from draft_service.drafters.suffix_lookup import SuffixLookup
from draft_service.drafters.tenant_memory import TenantMemory
from draft_service.feature_runner import make_runner
from draft_service.settings import DraftSettings
from draft_service.trained_draft import is_trained_draft, load_trained_draft
from specdec.engine.provision import provide_memory
from specdec.models.loading import LoadedModel, load_model
from specdec.sampling.params import ACCEPTANCE_RULES
from specdec.v1 import model_pb2


def make_drafter(settings: DraftSettings) -> Drafter:
    """The drafter that the settings ask for; loads its model if it has one. Blocks.

    Raises:
        ModelError: the model cannot be served.
    """
    if settings.drafter == "ngram":
        return NgramDrafter(
            min_length=settings.ngram_min,
            max_length=settings.ngram_max,
            max_num_draft_tokens=settings.max_num_draft_tokens,
            max_num_sequences=settings.max_num_sequences,
        )
    if settings.drafter == "suffix":
        return SuffixDrafter(
            suffix_lookup(settings),
            max_num_draft_tokens=settings.max_num_draft_tokens,
            max_num_sequences=settings.max_num_sequences,
        )
    if is_trained_draft(settings.model):
        loaded = load_trained_draft(
            settings.model,
            target=settings.target_model,
            dtype=settings.dtype,
            device=settings.device,
            max_context_length=settings.max_context_length,
            linear_kernel=settings.linear_kernel,
        )
    else:
        loaded = load_model(
            settings.model,
            dtype=settings.dtype,
            device=settings.device,
            max_context_length=settings.max_context_length,
            linear_kernel=settings.linear_kernel,
        )
    model = causal_lm_drafter(loaded, settings)
    return combined_drafter(model, settings) if settings.drafter == "combined" else model


def combined_drafter(model: Drafter, settings: DraftSettings) -> CombinedDrafter:
    """A drafter that runs a model, with lookup beside it as the settings have it."""
    return CombinedDrafter(model, suffix_lookup(settings), model_cost=settings.combined_model_cost)


def suffix_lookup(settings: DraftSettings) -> SuffixLookup:
    """Lookup by the longest match, with an empty memory, as the settings have it."""
    memory = TenantMemory(max_tokens=settings.past_output_tokens, max_tenants=settings.past_output_tenants)
    return SuffixLookup(memory, min_match_length=settings.suffix_min, tokens_per_match=settings.suffix_tokens_per_match)


def causal_lm_drafter(loaded: LoadedModel, settings: DraftSettings) -> CausalLMDrafter:
    """A language model that is loaded already, as a drafter within the settings' limits."""
    loaded.info.MergeFrom(
        model_pb2.ModelInfo(
            max_num_draft_tokens=settings.max_num_draft_tokens,
            max_num_sequences=settings.max_num_sequences,
            acceptance_rules=ACCEPTANCE_RULES,
        )
    )
    runner = make_runner(loaded)
    memory = provide_memory(runner, loaded.info, settings)
    return CausalLMDrafter(
        runner,
        loaded.info,
        loaded.model.device,
        memory,
        prefill_chunk_rows=settings.prefill_chunk_rows,
        max_batch_rows=settings.max_batch_rows,
        max_law_size=settings.max_law_size,
        confidence_threshold=settings.confidence_threshold,
        ahead_rows=settings.ahead_rows,
    )
