"""The resolved sampling rules of one request. No torch here: the orchestrator uses this module too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from specdec.errors import InvalidArgumentError
from specdec.v1 import model_pb2, sampling_pb2

ACCEPTANCE_RULES = (
    model_pb2.ACCEPTANCE_RULE_COUPLED,
    model_pb2.ACCEPTANCE_RULE_REJECTION,
    model_pb2.ACCEPTANCE_RULE_BLOCK,
)
"""All rules there are."""
MAX_LISTED_TOKEN_IDS = 1024
"""Most entries of `allowed_token_ids`, `banned_token_ids` and `stop_token_ids`."""
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_NUM_LOGPROBS = 20
MAX_DRAFT_LAW_SIZE = 1024
"""Most tokens in the law of a draft token."""
_MIN_TEMPERATURE = 1e-5
"""Below it, logits divided by the temperature come near the end of float32, and the law is greedy in all but name."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling rules with every default filled in; the meaning of each field is in sampling.proto.

    `stop_token_ids` is the full set that ends this request. Construction validates; it raises `InvalidArgumentError`
    naming the field and the values allowed.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, _MIN_TEMPERATURE, 100.0, or_zero=True)
        _check("top_k", self.top_k, 0, 2**31 - 1)
        _check("top_p", self.top_p, 0.0, 1.0, above=True)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("typical_p", self.typical_p, 0.0, 1.0, above=True)
        _check("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, 1024)
        _check("min_new_tokens", self.min_new_tokens, 0, 2**31 - 1)
        _check("seed", self.seed, 0, 2**64 - 1)
        if self.num_logprobs is not None:
            _check("num_logprobs", self.num_logprobs, 0, MAX_NUM_LOGPROBS)
        _check_sizes(self)
        for bias in self.logit_bias.values():
            _check("logit_bias", bias, -100.0, 100.0)

    @property
    def is_greedy(self) -> bool:
        """Temperature 0: the most probable token, no noise."""
        return self.temperature == 0.0

    def for_completion(self, index: int) -> SamplingParams:
        """The same rules with the seed of another completion of the prompt; completion 0 keeps the request's."""
        # An odd factor other than the one that positions and rounds are multiplied by, so that no seeds run in step.
        return replace(self, seed=(self.seed + index * 0xD1342543DE82EF95) % 2**64)

    def check_token_ids(self, vocab_size: int) -> None:
        """Refuse listed token ids that the vocabulary does not have.

        Raises:
            InvalidArgumentError: an id is at or above `vocab_size`, or no id is left to generate.
        """
        for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
            if any(token_id >= vocab_size for token_id in getattr(self, name)):
                raise InvalidArgumentError(f"{name} names a token id outside the vocabulary of {vocab_size}")
        excluded = set(self.banned_token_ids) | (set(self.stop_token_ids) if self.min_new_tokens else set())
        if self.allowed_token_ids and set(self.allowed_token_ids) <= excluded:
            raise InvalidArgumentError(
                "allowed_token_ids leaves no token to generate once banned_token_ids and min_new_tokens are applied"
            )

    def to_proto(self) -> sampling_pb2.SamplingParams:
        """Every field set, as the services want it."""
        message = sampling_pb2.SamplingParams()
        for descriptor in message.DESCRIPTOR.fields:
            value = getattr(self, descriptor.name)
            if descriptor.is_repeated:
                getattr(message, descriptor.name).update(value) if descriptor.name == "logit_bias" else getattr(
                    message, descriptor.name
                ).extend(value)
            elif value is not None:
                setattr(message, descriptor.name, value)
        return message

    @classmethod
    def from_proto(cls, message: sampling_pb2.SamplingParams, defaults: SamplingParams | None = None) -> SamplingParams:
        """The fields of a message; absent ones are taken from `defaults`.

        Without `defaults` every scalar but `num_logprobs` must be set: a service never guesses what a request meant.

        Raises:
            InvalidArgumentError: a field is absent that must be set, or a value is out of range.
        """
        values: dict[str, object] = {}
        # The lists before they are copied: a message may hold many thousand times more.
        _check_sizes(message)
        for descriptor in message.DESCRIPTOR.fields:
            name = descriptor.name
            if name == "logit_bias":
                values[name] = dict(message.logit_bias)
            elif descriptor.is_repeated:
                values[name] = tuple(getattr(message, name))
            elif message.HasField(name):  # type: ignore[arg-type]
                values[name] = getattr(message, name)
            elif defaults is not None:
                values[name] = getattr(defaults, name)
            elif name != "num_logprobs":
                raise InvalidArgumentError(f"sampling.{name} is not set; the orchestrator resolves every default")
        return cls(**values)  # type: ignore[arg-type]


def _check_sizes(params: SamplingParams | sampling_pb2.SamplingParams) -> None:
    """Refuse lists that are too long."""
    if len(params.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidArgumentError(f"logit_bias has {len(params.logit_bias)} entries; at most {MAX_LOGIT_BIAS_ENTRIES}")
    for name in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        if len(getattr(params, name)) > MAX_LISTED_TOKEN_IDS:
            raise InvalidArgumentError(
                f"{name} has {len(getattr(params, name))} entries; at most {MAX_LISTED_TOKEN_IDS}"
            )


def _check(name: str, value: float, low: float, high: float, *, above: bool = False, or_zero: bool = False) -> None:
    """Refuse a value outside [low, high], or (low, high] if `above`; NaN is outside, 0 is inside if `or_zero`."""
    inside = (low < value <= high) if above else (low <= value <= high)
    if not inside and not (or_zero and value == 0.0):
        bounds = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        bounds = f"0, or {bounds}" if or_zero else bounds
        raise InvalidArgumentError(f"{name} is {value:g}; it must be {bounds}")
