"""From a client's request to one with every default resolved and every value checked."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from orchestrator.resumption import check_resumed, check_room
from orchestrator.settings import OrchestratorSettings
from orchestrator.tenant import tenant_key
from orchestrator.tokenizer import PromptTokenizer
from specdec.errors import InvalidArgumentError, OutOfRangeError
from specdec.sampling.params import MAX_LISTED_TOKEN_IDS, SamplingParams
from specdec.v1 import generation_pb2, model_pb2

MAX_STOP_STRINGS = 16
MAX_COMPLETIONS = 16
MAX_STOP_STRING_CHARACTERS = 256
MAX_MESSAGES = 4096
MAX_ROLE_CHARACTERS = 64
ALWAYS_TOKENIZED_BYTES = 1 << 18
"""A text of up to this size is tokenized whatever the context: in a fraction of a second."""


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """What the decode loop works from; nothing is left to guess."""

    prompt_ids: list[int]
    sampling: SamplingParams
    """Full values: the seed is drawn and `stop_token_ids` is the whole set that ends this request."""
    max_new_tokens: int
    """At least 1; clipped to the room in the model's context."""
    num_draft_tokens: int | None
    """K; None: chosen by the server."""
    acceptance_rule: model_pb2.AcceptanceRule.ValueType
    stop_strings: tuple[str, ...]
    num_completions: int
    tenant: bytes = b""
    """See `tenant_key`; empty: nobody's."""
    resumed_ids: tuple[tuple[int, ...], ...] = ()
    """What the client has already, by completion; those beyond the last one have nothing yet."""

    @property
    def max_length(self) -> int:
        """Largest committed length, prompt included."""
        return len(self.prompt_ids) + self.max_new_tokens


def resolve_request(
    request: generation_pb2.GenerateRequest,
    model_info: model_pb2.ModelInfo,
    settings: OrchestratorSettings,
    tokenizer: PromptTokenizer,
) -> ResolvedRequest:
    """Check a request and fill in its defaults. Sizes are checked before work is done for them.

    Args:
        request: as the client sent it.
        model_info: of the target.
        settings: defaults of the server.
        tokenizer: of the target.

    Raises:
        InvalidArgumentError: a value is wrong; names the field and what it may be.
        OutOfRangeError: the prompt leaves no room for a token in the model's context.
    """
    sampling = _resolve_sampling(request, model_info)
    stop_strings = _check_stop_strings(request)
    rule = _resolve_rule(request, model_info)
    num_draft_tokens = request.num_draft_tokens if request.HasField("num_draft_tokens") else None
    if num_draft_tokens is not None and num_draft_tokens > model_info.max_num_draft_tokens:
        raise InvalidArgumentError(
            f"num_draft_tokens is {num_draft_tokens}; this server takes 0 to {model_info.max_num_draft_tokens}"
        )
    max_new_tokens = request.max_new_tokens if request.HasField("max_new_tokens") else settings.max_new_tokens
    if max_new_tokens < 1:
        raise InvalidArgumentError("max_new_tokens is 0; it must be at least 1")
    num_completions = request.num_completions if request.HasField("num_completions") else 1
    if not 1 <= num_completions <= MAX_COMPLETIONS:
        raise InvalidArgumentError(f"num_completions is {num_completions}; it must be 1 to {MAX_COMPLETIONS}")
    tenant = tenant_key(request.tenant, model_info.tokenizer_hash)
    resumed_ids = check_resumed(request, rule, max_new_tokens, num_completions, model_info)
    prompt_ids = _prompt_ids(request, model_info, tokenizer)
    max_new_tokens = min(max_new_tokens, model_info.max_context_length - len(prompt_ids))
    check_room(resumed_ids, max_new_tokens)
    return ResolvedRequest(
        prompt_ids=prompt_ids,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens,
        acceptance_rule=rule,
        stop_strings=stop_strings,
        num_completions=num_completions,
        tenant=tenant,
        resumed_ids=resumed_ids,
    )


def _resolve_sampling(request: generation_pb2.GenerateRequest, model_info: model_pb2.ModelInfo) -> SamplingParams:
    defaults = SamplingParams(seed=secrets.randbits(64))
    sampling = SamplingParams.from_proto(request.sampling, defaults)
    model_stops = () if sampling.ignore_eos else tuple(model_info.stop_token_ids)
    stop_token_ids = tuple(sorted({*sampling.stop_token_ids, *model_stops}))
    if len(stop_token_ids) > MAX_LISTED_TOKEN_IDS:
        raise InvalidArgumentError(
            f"stop_token_ids and the model's own stop tokens are {len(stop_token_ids)} together; at most"
            f" {MAX_LISTED_TOKEN_IDS}"
        )
    resolved = replace(sampling, stop_token_ids=stop_token_ids)
    resolved.check_token_ids(model_info.vocab_size)
    return resolved


def _check_stop_strings(request: generation_pb2.GenerateRequest) -> tuple[str, ...]:
    if len(request.stop_strings) > MAX_STOP_STRINGS:
        raise InvalidArgumentError(f"stop_strings has {len(request.stop_strings)} entries; at most {MAX_STOP_STRINGS}")
    for stop_string in request.stop_strings:
        if not 1 <= len(stop_string) <= MAX_STOP_STRING_CHARACTERS:
            raise InvalidArgumentError(
                f"stop_strings has an entry of {len(stop_string)} characters; each must have 1 to"
                f" {MAX_STOP_STRING_CHARACTERS}"
            )
    return tuple(request.stop_strings)


def _resolve_rule(
    request: generation_pb2.GenerateRequest, model_info: model_pb2.ModelInfo
) -> model_pb2.AcceptanceRule.ValueType:
    rule = request.acceptance_rule or model_pb2.ACCEPTANCE_RULE_COUPLED
    if rule not in model_info.acceptance_rules:
        known = ", ".join(_rule_name(rule) for rule in model_info.acceptance_rules)
        raise InvalidArgumentError(f"acceptance_rule is {_rule_name(rule)}; the target serves {known}")
    return rule


def _rule_name(rule: model_pb2.AcceptanceRule.ValueType) -> str:
    descriptor = model_pb2.AcceptanceRule.DESCRIPTOR.values_by_number.get(rule)
    return descriptor.name if descriptor else str(rule)


def _prompt_ids(
    request: generation_pb2.GenerateRequest, model_info: model_pb2.ModelInfo, tokenizer: PromptTokenizer
) -> list[int]:
    context = model_info.max_context_length
    kind = request.WhichOneof("input")
    if kind is None:
        raise InvalidArgumentError("the request has no input; set chat, text or token_ids")
    if kind == "token_ids":
        _check_length(len(request.token_ids.ids), context)
        ids = list(request.token_ids.ids)
        if ids and max(ids) >= model_info.vocab_size:
            raise InvalidArgumentError(f"token_ids has an id outside the vocabulary of {model_info.vocab_size}")
    elif kind == "text":
        _check_bytes(request.text, context, tokenizer)
        ids = tokenizer.encode_text(request.text)
    else:
        messages = _check_messages(request.chat, context, tokenizer)
        ids = tokenizer.encode_chat(messages)
    if not ids:
        raise InvalidArgumentError(f"{kind} is empty; a prompt needs at least one token")
    _check_length(len(ids), context)
    return ids


def _check_messages(chat: generation_pb2.ChatInput, context: int, tokenizer: PromptTokenizer) -> list[dict[str, str]]:
    if not 1 <= len(chat.messages) <= MAX_MESSAGES:
        raise InvalidArgumentError(f"chat.messages has {len(chat.messages)} entries; it must have 1 to {MAX_MESSAGES}")
    for message in chat.messages:
        if not 1 <= len(message.role) <= MAX_ROLE_CHARACTERS:
            raise InvalidArgumentError(
                f"a role has {len(message.role)} characters; 1 to {MAX_ROLE_CHARACTERS} are taken"
            )
    _check_bytes("".join(message.content for message in chat.messages), context, tokenizer)
    return [{"role": message.role, "content": message.content} for message in chat.messages]


def _check_bytes(text: str, context: int, tokenizer: PromptTokenizer) -> None:
    """Refuse, without tokenizing it, a text that would not fit into the context if every token were the longest.

    Some tokenizers drop text (runs of spaces, accents, what they do not know), so that a longer one might have fitted;
    `ALWAYS_TOKENIZED_BYTES` leaves them room.
    """
    limit = max(context * tokenizer.max_token_bytes, ALWAYS_TOKENIZED_BYTES)
    num_bytes = len(text.encode())
    if num_bytes > limit:
        raise OutOfRangeError(
            f"the prompt has {num_bytes} bytes; for a context of {context} tokens at most {limit} are taken"
        )


def _check_length(num_tokens: int, context: int) -> None:
    if num_tokens >= context:
        raise OutOfRangeError(
            f"the prompt has {num_tokens} tokens; the model's context of {context} must hold it and one more"
        )
