"""Settings of the draft service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import SettingsConfigDict

from specdec.sampling.params import MAX_DRAFT_LAW_SIZE
from specdec.settings import DEFAULT_DRAFT_MODEL, DEFAULT_DRAFT_PORT, DEFAULT_DRAFTER, ModelServiceSettings


class DraftSettings(ModelServiceSettings):
    """Serves a drafter: proposes tokens for a target to verify."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_DRAFT_")

    port: int = Field(
        DEFAULT_DRAFT_PORT, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it."
    )
    drafter: Literal["model", "ngram", "suffix", "combined"] = Field(
        DEFAULT_DRAFTER,
        description="model: a causal language model (--model); ngram: prompt lookup, no model; suffix: lookup by the "
        "longest match, in the request and in past outputs of its tenant, no model; combined: suffix where it is "
        "measured to bring more, else the model.",
    )
    model: str = Field(
        DEFAULT_DRAFT_MODEL,
        description="Draft model: the one that comes with this package, a directory from `specdec train-draft`, or any "
        "model with the target's tokenizer: Hugging Face id, directory, or path of a GGUF file.",
    )
    target_model: str = Field(
        "",
        description="Target of a trained draft, whose embeddings it shares; refused if the draft was trained for "
        "another one. Empty: found under the name that it had in training.",
    )
    ngram_max: int = Field(4, ge=1, le=64, description="Longest suffix, in tokens, that prompt lookup searches for.")
    ngram_min: int = Field(2, ge=1, le=64, description="Shortest suffix, in tokens, that it still trusts.")
    suffix_min: int = Field(2, ge=1, le=64, description="Shortest match, in tokens, that suffix lookup trusts.")
    suffix_tokens_per_match: float = Field(
        2.0, gt=0, le=64, description="Draft tokens that suffix lookup trusts for each token of the match."
    )
    combined_model_cost: float = Field(
        1.1,
        ge=1,
        le=100,
        description="With the drafter combined: what a round with the draft model costs, in rounds with lookup.",
    )
    past_output_tokens: int = Field(
        32768,
        ge=0,
        le=1 << 24,
        description="Past output kept for suffix lookup for each tenant, in tokens of some 170 bytes; 0: none.",
    )
    past_output_tenants: int = Field(
        64, ge=1, le=1 << 16, description="Tenants that past output is kept for; the least recently used is forgotten."
    )
    max_law_size: int = Field(
        64,
        ge=1,
        le=MAX_DRAFT_LAW_SIZE,
        description="Tokens kept of the law that a draft token is sampled from, for the rejection and block rules.",
    )
    confidence_threshold: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="End a draft model's window early, before the product of the largest probabilities of its laws "
        "falls below this; 0: never.",
    )

    ahead_rows: int = Field(
        16,
        ge=0,
        le=1024,
        description="Most rows of a pass of a draft model that drafts ahead while windows are verified, where an "
        "orchestrator asks for it (--pipeline) and the drafter is idle; 0: never.",
    )

    @model_validator(mode="after")
    def _check_ngram_lengths(self) -> DraftSettings:
        if self.ngram_min > self.ngram_max:
            raise PydanticCustomError("ngram_lengths", "--ngram-min must not be above --ngram-max")
        return self
