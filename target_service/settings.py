"""Settings of the target service."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import SettingsConfigDict

from specdec.settings import DEFAULT_TARGET_PORT, ModelServiceSettings


class TargetSettings(ModelServiceSettings):
    """Serves a target model: verifies windows of draft tokens."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_TARGET_")

    port: int = Field(
        DEFAULT_TARGET_PORT, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it."
    )

    max_queued_sequences: int = Field(
        64, ge=0, description="Sequences that may wait for key-value memory; more are refused with RESOURCE_EXHAUSTED."
    )

    @model_validator(mode="after")
    def _check_that_a_window_fits(self) -> TargetSettings:
        if self.max_batch_rows <= self.max_num_draft_tokens:
            raise PydanticCustomError(
                "batch_rows",
                "--max-batch-rows must be above --max-num-draft-tokens: a window is run at once",
            )
        return self
