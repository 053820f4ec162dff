"""The training state of a student: optimizer, counters, and the checkpoint that holds all of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from transformers import PreTrainedModel

from draft_service.state_guess import state_guess
from draft_service.trained_draft import own_tensors
from draft_service.training.batches import Batch, BatchMaker
from draft_service.training.distillation import Closeness, distillation_loss, state_loss, student_logits
from draft_service.training.samples import Sample
from draft_service.training.storage import write_whole
from specdec.models.errors import ModelError

_WARM_UP_STEPS = 40
_LOWEST_RATE = 0.05
"""Of the learning rate, at the end."""
_GRADIENT_NORM = 1.0
_STEP_WEIGHT = 0.8
_STATES_SHARE = 0.85
"""Of the run, in which a student with features learns the target's states; then it learns what they are good for."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """Counters of a run."""

    steps: int = 0
    visited_tokens: int = 0
    """Positions trained on, repetitions counted."""
    seconds: float = 0.0
    """Time of writing and training, earlier runs included."""
    sample_visits: dict[int, int] = field(default_factory=dict)
    """By the number of the sample."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One entry for each evaluation."""
    best_length: float = 0.0
    """Mean acceptance length of the best student so far."""


class Trainer:
    """Trains one student.

    Args:
        student: from `make_student`.
        draft_vocab: (draft_vocab_size,), int64.
        batch_maker: of the same draft vocabulary.
        dtype: arithmetic of the layers, float32 or bfloat16.
        num_steps: steps of drafting that a student with features is trained on at once.
        learning_rate: the highest.
        seed: of the run.
        directory: of checkpoints.
    """

    def __init__(
        self,
        student: PreTrainedModel,
        draft_vocab: torch.Tensor,
        batch_maker: BatchMaker,
        *,
        dtype: torch.dtype,
        num_steps: int,
        learning_rate: float,
        seed: int,
        directory: Path,
    ) -> None:
        self.student = student
        self.draft_vocab = draft_vocab
        self.progress = Progress()
        self._batch_maker = batch_maker
        self._dtype = dtype
        self._num_steps = num_steps
        self._learning_rate = learning_rate
        self._seed = seed
        self._directory = directory
        self._parameters = {name: each for name, each in student.named_parameters() if each.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01
        )

    def train_block(self, samples: Sequence[Sample], share_done: float) -> float:
        """Some steps on the samples visited least.

        Args:
            samples: to learn from, at least one.
            share_done: of the whole run, 0 to 1; the learning rate follows it down a half cosine.

        Returns:
            The mean loss.
        """
        progress = self.progress
        losses = []
        for batch in self._batch_maker.block(samples, progress.sample_visits, self._seed):
            rate = self._learning_rate * self._rate_factor(share_done)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            loss = self._loss(batch, share_done)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._parameters.values(), _GRADIENT_NORM)
            self._optimizer.step()
            progress.steps += 1
            progress.visited_tokens += batch.num_laws
            losses.append(float(loss.detach()))
        return sum(losses) / len(losses)

    def _loss(self, batch: Batch, share_done: float) -> torch.Tensor:
        """Mean over the steps; a later one counts less, as fewer windows get there."""
        if state_guess(self.student) is not None and share_done < _STATES_SHARE:
            losses = state_loss(self.student, batch, self._dtype, self._num_steps)
        else:
            steps = student_logits(self.student, batch, self._dtype, self._num_steps)
            losses = [distillation_loss(logits, batch) for logits in steps]
        weights = [_STEP_WEIGHT**step for step in range(len(losses))]
        return torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)

    def note(self, closeness: Closeness) -> None:
        """Enter an evaluation into the history, and keep the student if it is the best so far.

        Raises:
            ModelError: there is no room for it.
        """
        progress = self.progress
        counters = {"seconds": round(progress.seconds, 1), "visited_tokens": progress.visited_tokens}
        progress.history.append({**counters, "steps": progress.steps, **asdict(closeness)})
        if closeness.mean_acceptance_length > progress.best_length:
            progress.best_length = closeness.mean_acceptance_length
            state = {name: tensor.contiguous() for name, tensor in own_tensors(self.student).items()}
            write_whole(self._best, save(state))

    def take_best(self) -> None:
        """Give the student the values that it had when it was best."""
        _read_into(self._best, own_tensors(self.student))

    def save(self) -> None:
        """Write the checkpoint.

        Raises:
            ModelError: there is no room for it; the one before is still there.
        """
        tensors = {f"student.{name}": tensor.contiguous() for name, tensor in own_tensors(self.student).items()}
        for name, parameter in self._parameters.items():
            moments: dict[str, Any] = self._optimizer.state[parameter]
            tensors |= {f"{moment}.{name}": moments[moment] for moment in _MOMENTS if moment in moments}
        write_whole(self._checkpoint, save(tensors, {"progress": json.dumps(asdict(self.progress))}))

    def resume(self) -> bool:
        """Go on from the checkpoint, if there is one; returns whether there is.

        Raises:
            ModelError: the checkpoint is damaged.
        """
        if not self._checkpoint.exists():
            return False
        places = {f"student.{name}": tensor for name, tensor in own_tensors(self.student).items()}
        for name, parameter in self._parameters.items():
            moments = {moment: torch.zeros_like(parameter) for moment in _MOMENTS}
            places |= {f"{moment}.{name}": tensor for moment, tensor in moments.items()}
            self._optimizer.state[parameter] = moments
        metadata = _read_into(self._checkpoint, places)
        entries = json.loads(metadata["progress"])
        entries["sample_visits"] = {int(index): count for index, count in entries["sample_visits"].items()}
        self.progress = Progress(**entries)
        for state in self._optimizer.state.values():
            state["step"] = torch.tensor(float(self.progress.steps))
        return True

    @property
    def _checkpoint(self) -> Path:
        return self._directory / "checkpoint.safetensors"

    @property
    def _best(self) -> Path:
        return self._directory / "best.safetensors"

    def _rate_factor(self, share_done: float) -> float:
        warm_up = min(1.0, (self.progress.steps + 1) / _WARM_UP_STEPS)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, share_done)))
        return warm_up * (_LOWEST_RATE + (1.0 - _LOWEST_RATE) * cosine)


@torch.no_grad()
def _read_into(path: Path, places: dict[str, torch.Tensor]) -> dict[str, str]:
    """Copy the tensors of a file into those of the same names; returns the file's metadata."""
    try:
        with safe_open(path, "pt") as file:
            for name, place in places.items():
                place.copy_(file.get_tensor(name))
            return dict(file.metadata() or {})
    except Exception as error:
        raise ModelError(f"{path} is damaged; delete it and run the same command again") from error
