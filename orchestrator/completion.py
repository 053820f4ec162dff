"""One completion of a request's prompt: its rounds, its output, its sums."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from opentelemetry.trace import Span

from orchestrator.candidate_loop import decode_with_candidates
from orchestrator.candidate_verifier import CandidateVerifier
from orchestrator.committed import CommittedTokens
from orchestrator.decode_loop import decode
from orchestrator.detokenizer import IncrementalDetokenizer
from orchestrator.drafter import Drafter
from orchestrator.links.opening import SEQUENCE_ID_BYTES, Opening
from orchestrator.output import Finish, OutputAssembler, OutputPiece
from orchestrator.pipeline import Pipeline
from orchestrator.replicas.drafts import Drafts
from orchestrator.replicas.targets import Targets
from orchestrator.request import ResolvedRequest
from orchestrator.request_stats import RequestStats
from orchestrator.rounds import Round
from orchestrator.settings import OrchestratorSettings
from orchestrator.tokenizer import PromptTokenizer
from orchestrator.traced_window_size import TracedWindowSize
from orchestrator.verifier import Verifier
from orchestrator.window_size import NO_DRAFTS, FixedWindowSize, MeasuredWindowSize, SharedExperience, WindowSize
from specdec.telemetry.metrics import OrchestratorMetrics
from specdec.v1 import generation_pb2, model_pb2


class Completion:
    """Decodes one completion. Of several, each has its own sequence at both services and its own seed.

    Args:
        index: which completion of the request, from 0.
        request: what all of them have in common.
        admitted: when the request was admitted, in seconds of `time.perf_counter`.
        targets: replicas of the target.
        model_info: of the target, as it was when the request was resolved.
        tokenizer: the target's.
        drafts: replicas of the draft service; None: there are none.
        settings: of the orchestrator.
        metrics: where the rounds are counted.
        experience: of all requests, for the choice of K.
        pipeline: of all requests.
    """

    def __init__(
        self,
        index: int,
        request: ResolvedRequest,
        admitted: float,
        targets: Targets,
        model_info: model_pb2.ModelInfo,
        tokenizer: PromptTokenizer,
        drafts: Drafts | None,
        settings: OrchestratorSettings,
        metrics: OrchestratorMetrics,
        experience: SharedExperience,
        pipeline: Pipeline,
    ) -> None:
        self._index = index
        self._request = request
        self._targets = targets
        self._model_info = model_info
        self._drafts = drafts
        self._settings = settings
        self._metrics = metrics
        self._experience = experience
        self._pipeline = pipeline
        self._resumed_ids = request.resumed_ids[index] if index < len(request.resumed_ids) else ()
        self._output = OutputAssembler(
            IncrementalDetokenizer(tokenizer.backend, request.prompt_ids),
            request.stop_strings,
            request.sampling.stop_token_ids,
            request.max_new_tokens,
        )
        self.stats = RequestStats(admitted, len(request.prompt_ids), len(self._resumed_ids))
        self.finish: Finish | None = None
        """Why it ended; None while it runs."""

    def resume(self) -> None:
        """Take in what the client has already; before `responses`. Costs the reading of that text.

        Raises:
            InvalidArgumentError: the output ends before the last of these tokens.
        """
        self.finish = self._output.resume(self._resumed_ids)

    async def responses(self, span: Span) -> AsyncGenerator[generation_pb2.GenerateResponse, None]:
        """A Delta for each round, then Finished. Both services forget the sequence at once when this ends.

        Raises:
            Refusal: the target does not take the sequence, or cannot be reached any more.
        """
        if self.finish is not None:
            # The client had all of it but this.
            yield self._finished(self.finish)
            return
        async with aclosing(self._rounds(span)) as rounds, AsyncExitStack() as running:
            async for done, piece in rounds:
                if done.index == 0:
                    running.enter_context(self._experience.costs.running())
                seconds_since_last = self.stats.add(done, len(piece.token_ids), time.perf_counter())
                if done.index > 0:
                    self._metrics.round_ended(
                        num_draft_tokens=done.num_draft_tokens,
                        num_accepted_tokens=done.num_accepted_tokens,
                        draft_source=done.draft_source,
                        duration_seconds=done.wall_seconds,
                        times=done.times(),
                        seconds_per_token=seconds_since_last / max(len(piece.token_ids), 1),
                        overlap_seconds=done.overlap_seconds,
                        ahead_outcome=done.ahead_outcome,
                        span=span,
                    )
                self.finish = piece.finish
                yield self._delta(done, piece)
        if self.finish is None:
            raise RuntimeError("the rounds ended before the output did")
        yield self._finished(self.finish)

    def _delta(self, done: Round, piece: OutputPiece) -> generation_pb2.GenerateResponse:
        response = generation_pb2.GenerateResponse()
        delta = response.delta
        delta.text = piece.text
        delta.token_ids.extend(piece.token_ids)
        delta.logprobs.extend(piece.logprobs)
        done.write(delta.round)
        delta.completion = self._index
        delta.text_lengths.extend(piece.text_lengths)
        return response

    def _finished(self, finish: Finish) -> generation_pb2.GenerateResponse:
        finished = self.stats.finished(finish)
        finished.completion = self._index
        return generation_pb2.GenerateResponse(finished=finished)

    def _rounds(self, span: Span) -> AsyncGenerator[tuple[Round, OutputPiece], None]:
        """The decode loop of this completion."""
        request, settings, metrics = self._request, self._settings, self._metrics
        sequence_id = secrets.token_bytes(SEQUENCE_ID_BYTES)
        committed = CommittedTokens(
            [*request.prompt_ids, *self._resumed_ids], self._model_info.vocab_size, request.max_length
        )
        window_size = self._window_size()
        draft = None if window_size is NO_DRAFTS else self._drafts
        if draft is not None and span.is_recording():
            window_size = TracedWindowSize(window_size, span)
        opening = Opening(
            prompt_length=len(request.prompt_ids),
            sampling=request.sampling.for_completion(self._index).to_proto(),
            acceptance_rule=request.acceptance_rule,
            max_length=request.max_length,
            tenant=request.tenant,
            feature_states=draft.feature_states if draft is not None else (),
            max_feature_tokens=draft.max_feature_tokens if draft is not None else 0,
        )
        timeout_seconds, catch_up = settings.draft_timeout_seconds, self._experience.catch_up
        drafting = (draft, sequence_id, opening, committed, timeout_seconds, metrics, catch_up, self._pipeline)
        verifying = (self._targets, sequence_id, opening, committed, settings.round_timeout_seconds, metrics)
        output = self._output
        if self._pipeline.pushes_candidates and draft is not None and self._ignores_drafts:
            pushing = CandidateVerifier(*verifying)
            drafter = Drafter(*drafting, on_candidates=pushing.offer)
            return decode_with_candidates(committed, drafter, pushing, output, window_size, span)
        return decode(committed, Drafter(*drafting), Verifier(*verifying), output, window_size, span)

    @property
    def _ignores_drafts(self) -> bool:
        """Whether the target's choice is given before any draft is: by the coupled rule and at temperature 0."""
        return (
            self._request.acceptance_rule == model_pb2.ACCEPTANCE_RULE_COUPLED
            or self._request.sampling.temperature == 0
        )

    def _window_size(self) -> WindowSize:
        """As the request asks, or else the settings."""
        asked = self._request.num_draft_tokens
        limit = self._model_info.max_num_draft_tokens
        if asked is None and self._settings.num_draft_tokens != "auto":
            asked = min(self._settings.num_draft_tokens, limit)
        if self._drafts is None or asked == 0 or limit == 0:
            return NO_DRAFTS
        self._experience.announce(self._model_info)
        if asked is not None:
            return FixedWindowSize(asked)
        experience = self._experience if self._ignores_drafts else self._experience.costs_only()
        # What becomes of a tree is not drafted ahead for.
        branches = self._ignores_drafts and self._settings.pipeline not in ("ahead", "candidates")
        return MeasuredWindowSize(limit, experience, has_model=self._drafts.has_model, branches=branches)
