"""What requests look like."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.planning.pass_costs import PassCosts


@dataclass(frozen=True)
class RequestKind:
    """Requests of one size.

    Raises:
        ValueError: no tokens, or no weight.
    """

    prompt_tokens: int
    output_tokens: int
    weight: float = 1.0
    """Share among all requests, up to a factor that all kinds have in common."""

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1 or self.weight <= 0:
            raise ValueError("a kind of request has at least one token of prompt and of output, and a weight above 0")


@dataclass(frozen=True)
class RequestMix:
    """Kinds of requests, by weight.

    Raises:
        ValueError: there are none.
    """

    kinds: tuple[RequestKind, ...] = (RequestKind(512, 256),)

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ValueError("a mix has at least one kind of request")

    def prefill_seconds_per_token(self, verify: PassCosts, decoding_rows: float) -> float:
        """Time of the target that prefills take, for each token that is generated.

        A prompt rides on passes that decode others, so it costs what its rows make them longer.

        Args:
            verify: costs of a pass.
            decoding_rows: rows of a pass without prefills.
        """
        alone = verify.seconds(decoding_rows)
        seconds = sum(kind.weight * (verify.seconds(decoding_rows + kind.prompt_tokens) - alone) for kind in self.kinds)
        return seconds / sum(kind.weight * kind.output_tokens for kind in self.kinds)

    def mean_context_tokens(self) -> float:
        """Tokens that an open request holds on average, weighted by its stay: prompt and half of the output."""
        stays = [kind.weight * kind.output_tokens for kind in self.kinds]
        contexts = [kind.prompt_tokens + kind.output_tokens / 2 for kind in self.kinds]
        return sum(stay * context for stay, context in zip(stays, contexts, strict=True)) / sum(stays)
