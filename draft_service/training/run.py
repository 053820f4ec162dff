"""A whole training run: the target writes, the student learns, in turns, until the time is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from draft_service.draft_origin import DraftOrigin
from draft_service.state_guess import state_guess
from draft_service.target_tensors import read_embeddings, sha256_of
from draft_service.trained_draft import draft_files
from draft_service.training.batches import BatchMaker
from draft_service.training.conversation import Conversation
from draft_service.training.corpus import Corpus
from draft_service.training.distillation import measure
from draft_service.training.least_squares import fit
from draft_service.training.own_samples import write_own_samples
from draft_service.training.progress import Tell, progress_bar
from draft_service.training.prompts import Prompt, read_prompts
from draft_service.training.publication import publish
from draft_service.training.report import HELD_OUT
from draft_service.training.samples import NUM_TOP, Sample, SampleStore
from draft_service.training.settings import TrainingSettings
from draft_service.training.shared_text import SharedText
from draft_service.training.student import StudentLayers, make_student, student_config
from draft_service.training.trainer import Trainer
from draft_service.training.vocabulary import choose_draft_vocab, kept_draft_vocab, token_mass
from draft_service.training.workplace import check_same, exclusive
from draft_service.training.writer import Writer, score_in_float32
from specdec.models.cache import check_room
from specdec.models.errors import ModelError
from specdec.models.loading import LoadedModel, load_model
from specdec.models.progress import default_report
from specdec.models.source import provide_model
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import ModelRunner

_FIRST_TOKENS = 150_000
"""Written before training begins: the draft vocabulary is chosen from them."""
_VISITS_PER_TOKEN = 4
"""Times that training goes over the text before more is written; so many visits cost about as much as writing it."""
_WRITING_SHARE = 0.75
"""Of the run; what is written later would hardly be learnt."""
_OWN_FROM = 0.5
"""Share of the run after which the student writes, if it is to."""
_OWN_AT_ONCE = 64
_CHECKPOINT_SECONDS = 180.0
_NUM_FITTED = 1024
_NUM_MEASURED = 24
_NUM_HELD_OUT_PROMPTS = 24
_BYTES_PER_TOKEN = 5 * NUM_TOP

_logger = logging.getLogger(__name__)


def train_draft(settings: TrainingSettings) -> None:
    """Train a draft into `settings.out`, going on where an earlier run with the same settings was ended.

    Raises:
        ModelError: what stands in the way, and what to do.
    """
    work = settings.out / "work"
    prompts = read_prompts(settings.prompts) if settings.prompts else []
    report_prompts = read_prompts(settings.report_prompts) if settings.report_prompts else []
    with exclusive(work), progress_bar() as tell:
        target = load_model(settings.target, dtype=settings.dtype, device=settings.device)
        run = TrainingRun(settings, target, prompts, work, tell)
        run.train()
        # What it is measured with is the target as it is served.
        served = load_model(settings.target, device=settings.device, linear_kernel="auto")
        run.publish(served, report_prompts)
    _logger.info("the draft lies in %s; %s can be deleted", settings.out, work)


class TrainingRun:
    """One run in its work directory.

    Args:
        settings: of the run.
        target: the target, as it is to write.
        prompts: for it to answer.
        work: directory of data and checkpoints.
        tell: told how far the run is and what is going on.

    Raises:
        ModelError: the target cannot be made a student of, or the directory belongs to another run.
    """

    def __init__(
        self, settings: TrainingSettings, target: LoadedModel, prompts: Sequence[Prompt], work: Path, tell: Tell
    ) -> None:
        self._settings = settings
        self._target = target
        self._work = work
        self._tell = tell
        self._conversation = Conversation.of(target.tokenizer_files)
        self._layers = StudentLayers.choose(settings, target.model.config.num_hidden_layers)
        features, text_features = self._layers.features, self._layers.text_features
        hidden_states = HiddenStates(target.model) if features else None
        if hidden_states is not None:
            hidden_states.watch(text_features)
        self._target_directory = provide_model(settings.target, default_report())
        embeddings = read_embeddings(self._target_directory, target.model)
        self._origin = DraftOrigin(
            settings.target,
            target.info.tokenizer_hash,
            sha256_of(embeddings),
            self._layers.layers,
            self._layers.num_lower,
            features,
            settings.seed,
        )
        target_facts = {
            "tokenizer_hash": self._origin.tokenizer_hash,
            "embeddings_sha256": self._origin.embeddings_sha256,
        }
        student_facts = {
            "seed": settings.seed,
            "layers": self._layers.layers,
            "trained_layers": settings.trained_layers,
            "features": features,
            "draft_vocab_size": settings.draft_vocab_size,
        }
        self._text_facts: dict[str, object] = {
            "num_prompts": len(prompts),
            "text_features": text_features,
            "max_answer_tokens": settings.max_answer_tokens,
            # None: the run's own.
            "text_seed": None,
            "text_tokens": None,
        }
        self._shared: SharedText | None = None
        if settings.data is not None:
            self._shared = SharedText.load(settings.data, target_facts, settings.tokens)
            self._text_facts = self._shared.facts
            if features and self._text_facts["text_features"] != list(text_features):
                raise ModelError(
                    f"the text in {settings.data} was written with hidden states "
                    f"{self._text_facts['text_features']}, and the draft is to read {list(text_features)}; give the "
                    "same --upper-layers and --lower-layers, or 0 upper ones"
                )
        check_same(work / "run.json", {**target_facts, **student_facts, **self._text_facts})
        score_in_float32(target.model)
        writer = Writer(
            ModelRunner(target.model, target.info.vocab_size, hidden_states),
            self._conversation,
            target.info.stop_token_ids,
            [self._conversation.prompt(prompt.text) for prompt in prompts],
            seed=settings.seed,
            num_sequences=settings.num_sequences,
            max_answer_tokens=settings.max_answer_tokens,
            max_length=target.info.max_context_length,
            feature_states=text_features,
        )
        self._corpus = Corpus(SampleStore(work / "data"), writer, self._shared.samples if self._shared else ())
        num_tokens = 0 if self._shared else max(0, settings.tokens - self._corpus.num_tokens)
        check_room(work, num_tokens * _BYTES_PER_TOKEN, "--out")
        self._trainer: Trainer | None = None

    def train(self) -> None:
        """Write and train until the budget is used up; the last thing is a checkpoint.

        Raises:
            ModelError: no room is left on disk.
        """
        checkpoint_due = time.monotonic() + _CHECKPOINT_SECONDS
        while True:
            if self._wants_text:
                num_tokens = self._corpus.write_shard()
                self._report(f"wrote {num_tokens:,}")
                _logger.info("%.0f s: %d tokens written", self._seconds, self._corpus.num_tokens)
                continue
            trainer = self._ready_trainer()
            if self._share_done >= 1.0:
                return
            if self._wants_own_text and (unanswered := self._corpus.unanswered(_OWN_AT_ONCE)):
                self._write_own(trainer, unanswered)
                continue
            started = time.monotonic()
            loss = trainer.train_block(self._corpus.learnable, self._share_done)
            trainer.progress.seconds += time.monotonic() - started
            self._report(f"loss {loss:.3f}")
            if time.monotonic() > checkpoint_due or self._share_done >= 1.0:
                self._measure(trainer)
                trainer.save()
                checkpoint_due = time.monotonic() + _CHECKPOINT_SECONDS

    def publish(self, target: LoadedModel, report_prompts: Sequence[Prompt]) -> None:
        """Put the best student into the output directory, with its report.

        Args:
            target: to measure it with.
            report_prompts: to measure it with, besides held-out text.

        Raises:
            ModelError: no room is left on disk.
        """
        settings, trainer = self._settings, self._ready_trainer()
        progress = trainer.progress
        trainer.take_best()
        prompts: dict[str, list[Sequence[int]]] = {
            HELD_OUT: [
                sample.token_ids[: sample.answer_start].tolist()
                for sample in self._corpus.held_out[:_NUM_HELD_OUT_PROMPTS]
            ]
        }
        for prompt in report_prompts:
            prompts.setdefault(prompt.category, []).append(self._conversation.prompt(prompt.text))
        mass = token_mass(self._corpus.samples, target.info.vocab_size)
        config = student_config(target.model.config, self._origin.layers)
        config.tie_word_embeddings = False
        publish(
            settings.out,
            draft_files(trainer.student, trainer.draft_vocab, self._origin, config, self._target_directory),
            {
                "target": settings.target,
                "layers": self._origin.layers,
                "draft_vocab_size": len(trainer.draft_vocab),
                "vocab_mass": round(float(mass[trainer.draft_vocab].sum() / mass.sum()), 5),
                "tokens_written": self._corpus.num_tokens,
                "own_tokens": self._corpus.num_own_tokens,
                "tokens_visited": progress.visited_tokens,
                **self._text_facts,
                "text_hours": round(self._shared.seconds / 3600, 4) if self._shared else None,
                "hours": round(self._seconds / 3600, 4),
                "seed": settings.seed,
                "learning_rate": settings.highest_rate,
                "settings": settings.recorded(),
                "history": progress.history,
            },
            target=target,
            target_name=settings.target,
            prompts=prompts,
            seed=settings.seed,
            tell=lambda what: self._tell(1.0, what),
        )

    @property
    def _seconds(self) -> float:
        return self._corpus.seconds + (self._trainer.progress.seconds if self._trainer else 0.0)

    @property
    def _share_done(self) -> float:
        """Of the budget; the visits or the hours, whichever is nearer to its end."""
        settings = self._settings
        visited = self._trainer.progress.visited_tokens if self._trainer else 0
        return max(self._seconds / (3600 * settings.hours), visited / settings.visits if settings.visits else 0.0)

    @property
    def _wants_text(self) -> bool:
        corpus = self._corpus
        if self._shared is not None:
            return False
        if not (corpus.learnable and corpus.held_out):
            return True
        if corpus.num_tokens >= self._settings.tokens or self._share_done >= _WRITING_SHARE:
            return False
        visited = self._trainer.progress.visited_tokens if self._trainer else 0
        return corpus.num_tokens < max(_FIRST_TOKENS, visited / _VISITS_PER_TOKEN)

    @property
    def _wants_own_text(self) -> bool:
        corpus = self._corpus
        return self._share_done >= _OWN_FROM and corpus.num_own_tokens < self._settings.own_samples * corpus.num_tokens

    def _write_own(self, trainer: Trainer, prompts: Sequence[Sample]) -> None:
        settings, info = self._settings, self._target.info
        started = time.monotonic()
        own = write_own_samples(
            trainer.student,
            trainer.draft_vocab,
            ModelRunner(self._target.model, info.vocab_size),
            prompts,
            stop_token_ids=info.stop_token_ids,
            max_answer_tokens=settings.max_answer_tokens,
            max_length=info.max_context_length,
            seed=settings.seed,
        )
        self._corpus.add(own, time.monotonic() - started)
        self._report(f"the draft wrote {len(own)} answers")

    def _ready_trainer(self) -> Trainer:
        """The trainer, made once there is text: new, or from the last checkpoint."""
        if self._trainer is None:
            settings, model = self._settings, self._target.model
            draft_vocab = kept_draft_vocab(self._work / "draft_vocab.safetensors", self._choose_vocab)
            self._batch_maker = BatchMaker(
                draft_vocab, self._target.info.vocab_size, model.device, settings.batch_tokens
            )
            with torch.random.fork_rng():
                # What a student has that the target has not begins at random.
                torch.manual_seed(settings.seed)
                student = make_student(
                    model,
                    self._layers.own,
                    draft_vocab,
                    reads_states=self._layers.reads_states,
                    num_trained_layers=settings.trained_layers,
                )
            self._trainer = Trainer(
                student,
                draft_vocab,
                self._batch_maker,
                dtype=model.dtype,
                num_steps=settings.steps,
                learning_rate=settings.highest_rate,
                seed=settings.seed,
                directory=self._work,
            )
            if not self._trainer.resume():
                if (guess := state_guess(student)) is not None:
                    embeddings: Any = student.get_input_embeddings()
                    fit(guess, embeddings, self._corpus.learnable[:_NUM_FITTED])
                self._measure(self._trainer)
        return self._trainer

    def _choose_vocab(self) -> torch.Tensor:
        info = self._target.info
        mass = token_mass(self._corpus.samples, info.vocab_size)
        return choose_draft_vocab(mass, self._settings.draft_vocab_size, info.stop_token_ids)

    def _measure(self, trainer: Trainer) -> None:
        batches = self._batch_maker.batches(self._corpus.held_out[:_NUM_MEASURED])
        closeness = measure(trainer.student, batches, self._target.model.dtype)
        trainer.note(closeness)
        _logger.info(
            "%.0f s: %d tokens written, %d visited; on held-out text: agreement %.4f, overlap %.4f, loss %.4f",
            self._seconds,
            self._corpus.num_tokens,
            trainer.progress.visited_tokens,
            closeness.agreement,
            closeness.overlap,
            closeness.loss,
        )

    def _report(self, what: str) -> None:
        visited = self._trainer.progress.visited_tokens if self._trainer else 0
        self._tell(self._share_done, f"{self._corpus.num_tokens:,} tokens written, {visited:,} visited; {what}")
