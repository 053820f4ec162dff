"""Where draft tokens come from, in a word."""

from specdec.v1 import draft_pb2

_WORDS: dict[int, str] = {
    draft_pb2.DRAFT_SOURCE_MODEL: "model",
    draft_pb2.DRAFT_SOURCE_NGRAM: "ngram",
    draft_pb2.DRAFT_SOURCE_SUFFIX: "suffix",
    draft_pb2.DRAFT_SOURCE_MEMORY: "memory",
}
LOOKUP_SOURCES = frozenset((draft_pb2.DRAFT_SOURCE_NGRAM, draft_pb2.DRAFT_SOURCE_SUFFIX, draft_pb2.DRAFT_SOURCE_MEMORY))
"""Sources that take no model."""


def source_name(source: int) -> str:
    """The word for a `DraftSource`, for traces, metrics and people; "unknown" for any number that has none."""
    return _WORDS.get(source, "unknown")
