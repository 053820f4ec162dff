"""Settings of the target service."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specdec.settings import DEFAULT_TARGET_PORT, ModelServiceSettings


class TargetSettings(ModelServiceSettings):
    """Serves a target model: verifies windows of draft tokens."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_TARGET_")

    port: int = Field(
        DEFAULT_TARGET_PORT, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it."
    )
