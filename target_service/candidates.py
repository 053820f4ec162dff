"""Windows that wait for the outcome of the round before them."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.candidates import MAX_CANDIDATES, RoundOutcome, outcome_of
from specdec.engine.sequences import check_token_ids
from specdec.errors import InvalidArgumentError
from specdec.sampling.params import SamplingParams
from specdec.v1 import model_pb2, target_pb2
from target_service.answer import Answer
from target_service.judge import DraftWindow


@dataclass(frozen=True, slots=True)
class CandidateWindows:
    """All candidates of one round, in the order in which they came."""

    round: int
    base_length: int
    """Committed length that the round before stands on."""
    checksum: int
    """Of that prefix."""
    windows: dict[RoundOutcome, DraftWindow]
    trace_context: model_pb2.TraceContext

    def __len__(self) -> int:
        return len(self.windows)

    def following(self, answer: Answer) -> tuple[int, DraftWindow] | None:
        """The window for the outcome of the round before, and its number; None if there is none."""
        outcome = outcome_of(answer.accepted_nodes, answer.next_token_id)
        if outcome is None or outcome not in self.windows:
            return None
        return list(self.windows).index(outcome), self.windows[outcome]


def read_candidates(
    message: target_pb2.CandidateWindows,
    rule: model_pb2.AcceptanceRule.ValueType,
    params: SamplingParams,
    info: model_pb2.ModelInfo,
) -> CandidateWindows:
    """The candidates in a message.

    Raises:
        InvalidArgumentError: they are malformed whatever they stand on, or the sequence's rule forbids them.
    """
    if rule != model_pb2.ACCEPTANCE_RULE_COUPLED and not params.is_greedy:
        raise InvalidArgumentError("candidate windows are judged by the coupled rule and at temperature 0 only")
    if message.round < 1:
        raise InvalidArgumentError("candidates.round is 0; there is no round before it")
    if not 1 <= len(message.windows) <= MAX_CANDIDATES:
        raise InvalidArgumentError(
            f"candidates.windows has {len(message.windows)} entries; it must have 1 to {MAX_CANDIDATES}"
        )
    limit = info.max_num_draft_tokens
    windows: dict[RoundOutcome, DraftWindow] = {}
    for each in message.windows:
        if each.num_accepted_tokens > limit:
            raise InvalidArgumentError(
                f"a candidate is for {each.num_accepted_tokens} accepted tokens; a window has at most {limit}"
            )
        if len(each.token_ids) > limit:
            raise InvalidArgumentError(
                f"a candidate has {len(each.token_ids)} draft tokens; at most {limit} are verified"
            )
        check_token_ids("candidates.windows", [each.next_token_id, *each.token_ids], info.vocab_size)
        outcome = RoundOutcome(each.num_accepted_tokens, each.next_token_id)
        if outcome in windows:
            raise InvalidArgumentError("two candidates are for the same outcome")
        windows[outcome] = DraftWindow(list(each.token_ids))
    return CandidateWindows(message.round, message.base_length, message.checksum, windows, message.trace_context)
