from __future__ import annotations

import struct
import zlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from specdec.checksum import prefix_checksum

TOKEN_IDS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def test_golden_value() -> None:
    # Part of the protocol: CRC-32 of the bytes 01000000 02000000 ff01ff00.
    assert prefix_checksum([1, 2, 0x00FF01FF]) == zlib.crc32(bytes.fromhex("0100000002000000ff01ff00")) == 0xEEB61CC9


@given(TOKEN_IDS)
def test_is_the_crc_of_little_endian_words(token_ids: list[int]) -> None:
    assert prefix_checksum(token_ids) == zlib.crc32(struct.pack(f"<{len(token_ids)}I", *token_ids))
    assert prefix_checksum(tuple(token_ids)) == prefix_checksum(token_ids)


@given(TOKEN_IDS, TOKEN_IDS)
def test_grows_with_the_prefix(known: list[int], new: list[int]) -> None:
    assert prefix_checksum(new, prefix_checksum(known)) == prefix_checksum(known + new)


@given(TOKEN_IDS.filter(bool), st.data())
def test_one_other_token_is_another_checksum(token_ids: list[int], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(token_ids) - 1))
    other = data.draw(st.integers(0, 2**32 - 1).filter(lambda token: token != token_ids[index]))
    changed = [*token_ids[:index], other, *token_ids[index + 1 :]]
    assert prefix_checksum(changed) != prefix_checksum(token_ids)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_what_is_no_token_id_is_no_part_of_a_prefix(token_id: int) -> None:
    with pytest.raises(OverflowError):
        prefix_checksum([token_id])
