"""Windows for outcomes that are not known yet, as the draft service sends them."""

from __future__ import annotations

from orchestrator.window import ImpossibleProposal, Window
from specdec.candidates import MAX_CANDIDATES, RoundOutcome
from specdec.v1 import draft_pb2

Candidates = dict[RoundOutcome, Window]
"""In the order in which they came, which numbers them."""


def read_candidates(
    message: draft_pb2.Candidates, base_length: int, num_proposed: int, num_draft_tokens: int, vocab_size: int
) -> Candidates:
    """The candidates in a message.

    Args:
        message: as it came.
        base_length: committed length that the proposal they follow must stand on.
        num_proposed: tokens of that proposal, at most.
        num_draft_tokens: most tokens of a candidate.
        vocab_size: ids at or above it do not exist.

    Raises:
        ImpossibleProposal: they are malformed, or follow something else.
    """
    if message.base_length != base_length:
        raise ImpossibleProposal(f"they follow {message.base_length} tokens; {base_length} are committed")
    if len(message.candidates) > MAX_CANDIDATES:
        raise ImpossibleProposal(
            f"there are {len(message.candidates)} of them; at most {MAX_CANDIDATES} were asked for"
        )
    candidates: Candidates = {}
    for each in message.candidates:
        token_ids = list(each.token_ids)
        if len(token_ids) > num_draft_tokens:
            raise ImpossibleProposal(f"one has {len(token_ids)} draft tokens; {num_draft_tokens} were asked for")
        if any(token_id >= vocab_size for token_id in (each.next_token_id, *token_ids)):
            raise ImpossibleProposal(f"one has a token outside the vocabulary of {vocab_size}")
        outcome = RoundOutcome(each.num_accepted_tokens, each.next_token_id)
        if outcome in candidates:
            raise ImpossibleProposal("two are for the same outcome")
        if outcome.num_accepted_tokens > num_proposed:
            raise ImpossibleProposal(f"one is for {outcome.num_accepted_tokens} accepted tokens of {num_proposed}")
        candidates[outcome] = Window(token_ids)
    return candidates
