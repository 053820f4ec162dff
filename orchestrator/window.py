"""The draft tokens of one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.v1 import draft_pb2, model_pb2


class ImpossibleProposal(Exception):
    """The draft service's proposal is not one that was asked for."""


@dataclass(frozen=True, slots=True)
class Window:
    """Draft tokens as the target will judge them; empty is legal and is plain decoding."""

    token_ids: Sequence[int] = ()
    parents: Sequence[int] = ()
    """For each node the node it follows, or -1; empty: a chain."""
    distributions: Sequence[model_pb2.DraftDistribution] = ()
    """For each node the law it was sampled from; empty: none is needed."""
    max_feature_tokens: int = 0
    """Of how many of the last tokens the verdict is to carry features; 0: of those that are run for it."""
    without_features: bool = False
    """It need carry none."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def chain_length(self) -> int:
        """Nodes, from the first on, of which each follows the one before: what draft steps gave, without runners-up."""
        places = enumerate(self.parents)
        return next((node for node, parent in places if parent != node - 1), len(self.token_ids))

    @property
    def lost_mass(self) -> float:
        """Mean probability that truncation took from the laws; 0 without laws."""
        masses = [distribution.lost_mass for distribution in self.distributions]
        return sum(masses) / len(masses) if masses else 0.0

    @classmethod
    def from_proposal(
        cls, proposal: draft_pb2.Proposal, base_length: int, num_draft_tokens: int, vocab_size: int
    ) -> Window:
        """The window that a proposal makes.

        Args:
            proposal: as it came.
            base_length: committed length it must stand on.
            num_draft_tokens: tokens that were asked for; fewer are fine.
            vocab_size: ids at or above it do not exist.

        Raises:
            ImpossibleProposal: it is malformed, or answers something else.
        """
        token_ids = list(proposal.token_ids)
        parents = list(proposal.parents)
        if proposal.base_length != base_length:
            raise ImpossibleProposal(f"it continues {proposal.base_length} tokens; {base_length} are committed")
        if len(token_ids) > num_draft_tokens:
            raise ImpossibleProposal(f"it has {len(token_ids)} draft tokens; {num_draft_tokens} were asked for")
        if any(token_id >= vocab_size for token_id in token_ids):
            raise ImpossibleProposal(f"it has a token outside the vocabulary of {vocab_size}")
        if parents and (
            len(parents) != len(token_ids) or any(not -1 <= parent < node for node, parent in enumerate(parents))
        ):
            raise ImpossibleProposal("its parents do not make a tree of its tokens")
        if proposal.distributions and len(proposal.distributions) != len(token_ids):
            raise ImpossibleProposal("it has not one distribution for each token")
        return cls(token_ids, parents, proposal.distributions)


EMPTY_WINDOW = Window()
