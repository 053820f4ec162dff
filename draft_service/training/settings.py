"""Settings of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from specdec.settings import DEFAULT_MODEL

_GUESS_RATE, _LAYERS_RATE = 1e-3, 3e-4


class TrainingSettings(BaseSettings):
    """Trains a draft model for a target, on text that the target writes. Run it again after a kill: it goes on."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_TRAIN_DRAFT_")

    target: str = Field(
        DEFAULT_MODEL, description="Target model: embedded name, Hugging Face id, directory or GGUF file."
    )
    out: Path = Field(description="Directory for the draft model; the data and checkpoints lie in its folder work/.")
    hours: float = Field(2.0, gt=0, description="Time for writing and training together, earlier runs included.")
    tokens: int = Field(1_000_000, ge=1, description="Tokens that the target writes at most.")
    data: Path | None = Field(
        None,
        description="Directory (--out) of another run on the same target: learn from its text, at most --tokens of it, "
        "and write none. So several students are trained on one text.",
    )
    visits: int = Field(
        0, ge=0, description="Tokens trained on, repetitions counted, after which it ends; 0: when the hours are over."
    )
    device: str = Field("auto", description="cpu, cuda, cuda:N, or auto (CUDA if there is one).")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Arithmetic of writing and training; auto is float32 on CPU and bfloat16 on CUDA. bfloat16 is much "
        "faster on a CPU that has it (avx512_bf16). The draft's own values are float32 in training either way.",
    )
    threads: int = Field(0, ge=0, description="Threads on CPU; 0 is PyTorch's choice.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of everything random.")
    upper_layers: int | None = Field(
        None,
        ge=0,
        description="How many upper layers of the target the draft has, which read the target's own hidden state below "
        "them; unset: 7 of 15. 0: the draft reads tokens alone, and has --layers.",
    )
    lower_layers: int | None = Field(
        None,
        ge=0,
        description="How many lower layers of the target it has besides, from which the state is guessed where the "
        "target has none yet; unset: 1 of 15.",
    )
    trained_layers: int = Field(
        0,
        ge=0,
        description="How many of the upper layers are trained, from the lowest on, and stored with the draft. The "
        "others are the target's, and read from its files. Worth it where there are few.",
    )
    layers: str = Field(
        "",
        description="Layers of the target that a draft begins with which reads tokens alone, such as 0,1,28,29; empty: "
        "two at each end.",
    )
    draft_vocab_size: int = Field(8192, ge=2, description="Tokens that the draft can propose.")
    prompts: Path | None = Field(
        None,
        description="Prompts for the target to answer besides its own: JSON lines with question_id, category and "
        "turns. Never those that the draft is to be measured with.",
    )
    report_prompts: Path | None = Field(
        None, description="Prompts to measure the draft with, in the same format; never trained on."
    )
    num_sequences: int = Field(128, ge=1, description="Texts that the target writes at the same time.")
    max_answer_tokens: int = Field(256, ge=8, description="Longest answer that the target writes.")
    own_samples: float = Field(
        0.0,
        ge=0,
        le=1,
        description="From half of the run on, let the draft write this much text itself, relative to what the target "
        "wrote, and learn the target's law there (DistillSpec). More text of the target does as much: docs/drafts.md.",
    )
    steps: int = Field(
        2, ge=1, le=16, description="Steps of drafting that a draft with features is trained to look ahead."
    )
    batch_tokens: int = Field(2048, ge=8, description="Tokens of one training step.")
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Highest learning rate; unset: 0.001 where only the guess of states is trained, else 0.0003.",
    )

    @property
    def highest_rate(self) -> float:
        """The learning rate that is used."""
        if self.learning_rate is not None:
            return self.learning_rate
        return _LAYERS_RATE if self.trained_layers or self.upper_layers == 0 else _GUESS_RATE

    def recorded(self) -> dict[str, Any]:
        """The settings by which the draft can be trained again, as JSON values: all but those of places."""
        return self.model_dump(mode="json", exclude={"target", "out", "data", "prompts", "report_prompts"})
