"""Every source of draft tokens has a word of its own, and an unknown one has one too."""

from specdec.draft_source import source_name
from specdec.telemetry import names
from specdec.v1 import draft_pb2


def test_every_source_has_a_word() -> None:
    values = [value for value in draft_pb2.DraftSource.values() if value != draft_pb2.DRAFT_SOURCE_UNSPECIFIED]
    words = [source_name(value) for value in values]
    assert len(set(words)) == len(values)
    assert all(f"`{word}`" in names.ATTRIBUTES[names.DRAFT_SOURCE] for word in words)


def test_what_is_not_known_is_one_word() -> None:
    assert {source_name(value) for value in (0, -1, 77, 2**31 - 1)} == {"unknown"}
