"""Requests, and what the orchestrator makes of them for the tiny model."""

from __future__ import annotations

from typing import Any

from orchestrator.request import ResolvedRequest, resolve_request
from orchestrator.settings import OrchestratorSettings
from orchestrator.tokenizer import PromptTokenizer
from specdec.v1 import generation_pb2, model_pb2, sampling_pb2
from tests.tiny_models import EOS_TOKEN_ID, TINY_VOCAB_SIZE, tiny_tokenizer_files

MARKER = "xyzzy plugh"
"""A prompt to look for where none may be."""
CONTEXT = 32
MAX_NUM_DRAFT_TOKENS = 8
COUPLED, REJECTION, BLOCK = (
    model_pb2.ACCEPTANCE_RULE_COUPLED,
    model_pb2.ACCEPTANCE_RULE_REJECTION,
    model_pb2.ACCEPTANCE_RULE_BLOCK,
)
MODEL_INFO = model_pb2.ModelInfo(
    vocab_size=TINY_VOCAB_SIZE,
    max_context_length=CONTEXT,
    max_num_draft_tokens=MAX_NUM_DRAFT_TOKENS,
    acceptance_rules=[COUPLED, REJECTION],
    stop_token_ids=[EOS_TOKEN_ID, 7],
)
FILES = tiny_tokenizer_files()
TOKENIZER = PromptTokenizer(FILES)


def model_info(**fields: Any) -> model_pb2.ModelInfo:
    """`MODEL_INFO` with other values in some fields."""
    changed = model_pb2.ModelInfo(**fields)
    info = model_pb2.ModelInfo()
    info.CopyFrom(MODEL_INFO)
    for field, _ in changed.ListFields():
        info.ClearField(field.name)  # type: ignore[arg-type]
    info.MergeFrom(changed)
    return info


def resolve(
    request: generation_pb2.GenerateRequest,
    info: model_pb2.ModelInfo = MODEL_INFO,
    tokenizer: PromptTokenizer = TOKENIZER,
    **settings: Any,
) -> ResolvedRequest:
    return resolve_request(request, info, OrchestratorSettings(**settings), tokenizer)


def text(content: str = "hi", **fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(text=content, **fields)


def ids(*token_ids: int) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(token_ids=generation_pb2.TokenIds(ids=token_ids))


def chat(*messages: tuple[str, str]) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(
        chat=generation_pb2.ChatInput(
            messages=[generation_pb2.ChatMessage(role=role, content=content) for role, content in messages]
        )
    )


def sampling(**fields: Any) -> generation_pb2.GenerateRequest:
    return text(sampling=sampling_pb2.SamplingParams(**fields))
