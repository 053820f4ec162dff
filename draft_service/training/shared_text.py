"""Text of another run on the same target: students of several sizes learn from one text, which is written once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draft_service.training.own_samples import is_own
from draft_service.training.samples import Sample, SampleStore
from draft_service.training.storage import storage_errors
from specdec.models.errors import ModelError


@dataclass(frozen=True)
class SharedText:
    """What a run takes from another one. Only read: the other run may be going on."""

    samples: list[Sample]
    seconds: float
    """That writing all text there took."""
    facts: dict[str, object]
    """What decided the text, for the note of the run that takes it."""

    @classmethod
    def load(cls, out: Path, target_facts: Mapping[str, object], max_tokens: int) -> SharedText:
        """The first texts of a run, as many as make up `max_tokens`; what its student wrote is left out.

        Args:
            out: directory of the other run.
            target_facts: of the target that is to be learnt, as `run.json` has them.
            max_tokens: most tokens written by the target, whole texts.

        Raises:
            ModelError: there is no run, its target is another one, or it has not written any text to train with and
                to measure with.
        """
        work = out / "work"
        try:
            with storage_errors(work):
                of_run = json.loads((work / "run.json").read_text(encoding="utf-8"))
            differs = next((name for name in target_facts if of_run[name] != target_facts[name]), None)
            facts = {name: of_run[name] for name in ("num_prompts", "max_answer_tokens", "text_features")}
            facts["text_seed"] = of_run["seed"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{work / 'run.json'} is damaged; give another run with --data") from error
        if differs is not None:
            raise ModelError(
                f"the text in {work} was written by another target ({differs} {of_run[differs]!r}, and this one has "
                f"{target_facts[differs]!r}); leave --data out, and the target writes its own"
            )
        store = SampleStore(work / "data")
        samples, num_tokens = [], 0
        for sample in store.load():
            if num_tokens < max_tokens and not is_own(sample):
                samples.append(sample)
                num_tokens += len(sample.law_positions)
        if len({sample.is_held_out for sample in samples}) < 2:
            raise ModelError(
                f"{work} has no text of its own to share; let that run write some first, or leave --data out"
            )
        return cls(samples, store.seconds, {**facts, "text_tokens": num_tokens})
