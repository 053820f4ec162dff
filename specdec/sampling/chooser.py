"""A request's rules at work: which token, or which law, at a position. The same on both sides of the wire."""

import math
from collections.abc import Hashable, Sequence

import torch

from specdec.errors import InvalidArgumentError
from specdec.sampling.laws import DraftLaw, TargetLaw
from specdec.sampling.noise import (
    Stream,
    first_highest,
    first_highest_of_rows,
    gumbel,
    gumbel_argmax,
    gumbel_argmax_of_rows,
    noise_key,
    noise_keys,
    seed_key,
)
from specdec.sampling.params import SamplingParams
from specdec.sampling.processors import LogitsRules

_NUM_CONSIDERED = 64
"""Most probable tokens that candidates are looked for among."""
_NO_NUMBERS = "the model's logits are not finite numbers"


class TokenChooser:
    """Chooses tokens for one request, by logits and the tokens before them.

    In every method `logits` is (vocab_size,), float32, of the position behind the `committed` tokens and the draft
    tokens `path`. All of them raise InvalidArgumentError if the request's rules exclude every token there, and
    FloatingPointError if the model gave no numbers.

    Args:
        params: the request's rules and seed.
        prompt_length: tokens of the prompt.
        device: of the logits.
    """

    def __init__(self, params: SamplingParams, prompt_length: int, device: torch.device) -> None:
        self._rules = LogitsRules(params, prompt_length, device)
        self._seed = params.seed
        self.is_greedy = params.is_greedy
        """Whether nothing is drawn."""
        self.seed_key = seed_key(params.seed)
        """What its noise is keyed with."""
        self.reads_history = self._rules.reads_history
        """Whether choices depend on the tokens before, other than through the model."""
        self.rules_key = _rules_key(params)
        """Equal for requests whose rules are, but for those that read history and for seeds."""
        self.is_plain = params.is_greedy and self._rules.is_empty
        """Whether the highest logit decides, whatever came before: then many positions can be looked at in one go."""

    def process_rows(self, logits: torch.Tensor) -> torch.Tensor:
        """As `process`, of several positions, (rows, vocab_size); only if it does not read history."""
        return self._rules.apply_to_rows(logits)

    def process(self, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int] = ()) -> torch.Tensor:
        """The logits after the request's rules, as `LogitsRules.apply` gives them."""
        return self._process(logits, committed, path)[0]

    def _process(self, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int]) -> tuple[torch.Tensor, int]:
        """The processed logits, and the token that has the highest."""
        history = [*committed, *path] if self._rules.reads_history else ()
        processed = self._rules.apply(logits, history)
        favourite, highest = first_highest(processed)
        if math.isnan(highest) or highest == math.inf:
            raise FloatingPointError(_NO_NUMBERS)
        if highest == -math.inf:
            if not bool(torch.isfinite(logits).any()):
                raise FloatingPointError(_NO_NUMBERS)
            raise InvalidArgumentError("the sampling rules exclude every token at some position; relax them")
        return processed, favourite

    def choose(self, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int] = ()) -> int:
        """The token with the highest processed logit plus the noise of the position; at temperature 0 without noise.

        The noise is a function of the request's seed, the absolute position and the token, so a drafter with logits
        close to the target's chooses the same tokens.
        """
        processed, favourite = self._process(logits, committed, path)
        if self.is_greedy:
            return favourite
        return gumbel_argmax(processed, noise_key(self._seed, len(committed) + len(path), Stream.TARGET))

    def choose_plainly(self, favourite: tuple[int, float]) -> int:
        """As `choose`, if `is_plain`, of the token with the highest logit and that logit."""
        token, highest = favourite
        if not math.isfinite(highest):
            raise FloatingPointError(_NO_NUMBERS)
        return token

    def candidates(
        self, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int], count: int
    ) -> list[tuple[int, float]]:
        """The tokens that the target is likeliest to choose, by the coupled rule and at temperature 0.

        The likeliest is that of `choose`. The others follow by processed logit plus noise, and the probabilities are
        softmax of that: as far as the drafter's logits are off by noise of the same kind, so likely is each to win.

        Args:
            logits: as everywhere.
            committed: as everywhere.
            path: as everywhere.
            count: most tokens.

        Returns:
            Distinct token ids with their probabilities, which do not increase.
        """
        processed, favourite = self._process(logits, committed, path)
        values, token_ids = processed.topk(min(max(count, _NUM_CONSIDERED), processed.numel()))
        first = favourite
        if not self.is_greedy:
            key = noise_key(self._seed, len(committed) + len(path), Stream.TARGET)
            first = gumbel_argmax(processed, key)
            values = values + gumbel(key, token_ids).to(values.dtype)
        shares, order = torch.softmax(values, -1).sort(descending=True, stable=True)
        ranked = [
            (token, share)
            for token, share in zip(token_ids[order].tolist(), shares.tolist(), strict=True)
            if share > 0.0 and token != first
        ]
        return [(first, float(shares[0])), *ranked[: count - 1]]

    def runners_up(
        self,
        logits: torch.Tensor,
        committed: Sequence[int],
        path: Sequence[int],
        without: Sequence[int],
        count: int,
        *,
        with_noise: bool,
    ) -> list[int]:
        """What would be chosen one after the other, if those before were not there.

        Args:
            logits: see the class.
            committed: see the class.
            path: see the class.
            without: tokens that are not there to begin with.
            count: how many; fewer are given if the rules leave no more.
            with_noise: as `choose` does; else by the processed logits alone, as it does at temperature 0.
        """
        processed = self.process(logits, committed, path).clone()
        found: list[int] = []
        for token in without:
            processed[token] = -math.inf
        key = noise_key(self._seed, len(committed) + len(path), Stream.TARGET)
        while len(found) < count:
            favourite, highest = first_highest(processed)
            if highest == -math.inf:
                break
            found.append(gumbel_argmax(processed, key) if with_noise and not self.is_greedy else favourite)
            processed[found[-1]] = -math.inf
        return found

    def confidence(self, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int] = ()) -> float:
        """The largest probability of softmax(processed logits); at temperature 0 they are not divided by anything."""
        processed = self.process(logits, committed, path)
        return math.exp(float(processed.max() - processed.logsumexp(dim=-1)))

    def target_law(self, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int] = ()) -> TargetLaw:
        """The law that the rejection and block rules hold draft tokens against."""
        return TargetLaw.from_logits(self.process(logits, committed, path), is_greedy=self.is_greedy)

    def draft_law(self, logits: torch.Tensor, committed: Sequence[int], path: Sequence[int], max_size: int) -> DraftLaw:
        """The law to sample a draft token from, of at most `max_size` tokens; at temperature 0 of one."""
        processed, favourite = self._process(logits, committed, path)
        if self.is_greedy:
            return DraftLaw.one_hot(favourite)
        return DraftLaw.from_logits(processed, max_size)


def choose_rows(choosers: Sequence[TokenChooser], logits: torch.Tensor, positions: Sequence[int]) -> list[int | None]:
    """`TokenChooser.choose` for several requests at once, which have one `rules_key` and read no history.

    Args:
        choosers: of the requests.
        logits: (rows, vocab_size), float32, a row for each of them.
        positions: of the tokens that are chosen.

    Returns:
        The tokens; None where `choose` would raise.
    """
    first = choosers[0]
    processed = first.process_rows(logits)
    if first.is_greedy:
        tokens, values = first_highest_of_rows(processed)
        return [token if math.isfinite(value) else None for token, value in zip(tokens, values, strict=True)]
    keys = noise_keys([chooser.seed_key for chooser in choosers], positions, Stream.TARGET)
    return gumbel_argmax_of_rows(processed, keys)


def _rules_key(params: SamplingParams) -> Hashable:
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "allowed_token_ids", "banned_token_ids")
    return (*(getattr(params, name) for name in names), tuple(params.logit_bias.items()))
