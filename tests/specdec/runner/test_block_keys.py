"""Keys of blocks: equal for equal prefixes, different for all others."""

from __future__ import annotations

import itertools

from specdec.runner.block_keys import BlockKeys

SECRET = bytes(16)


def keys(token_ids: list[int], salt: bytes = b"", secret: bytes = SECRET) -> list[bytes]:
    """Of all blocks of four."""
    of = BlockKeys(secret, salt, 4)
    return [of.key(index, token_ids) for index in range(-(-len(token_ids) // 4))]


def test_a_key_stands_for_every_token_up_to_the_end_of_its_block() -> None:
    prompt = list(range(10))
    assert keys(prompt) == keys(prompt)
    assert keys([*prompt, 10, 11, 12])[:2] == keys(prompt)[:2]
    for place in range(10):
        changed = [*prompt[:place], 99, *prompt[place + 1 :]]
        same = [one == other for one, other in zip(keys(prompt), keys(changed), strict=True)]
        assert same == [place >= 4, place >= 8, False]


def test_no_two_prefixes_have_one_key() -> None:
    prefixes = [list(tokens) for length in range(1, 7) for tokens in itertools.product((0, 1, 256), repeat=length)]
    assert len({keys(prefix)[-1] for prefix in prefixes}) == len(prefixes)


def test_salts_and_pools_have_keys_of_their_own() -> None:
    variants = [keys([1, 2]), keys([1, 2], b"a"), keys([1, 2], b"b"), keys([1, 2], secret=b"1" * 16)]
    assert len({key for variant in variants for key in variant}) == 4
    assert {len(key) for variant in variants for key in variant} == {16}


def test_keys_of_a_sequence_that_grows() -> None:
    of = BlockKeys(SECRET, b"", 4)
    prompt: list[int] = []
    for token in range(13):
        prompt.append(token)
        index = (len(prompt) - 1) // 4
        assert of.key(index, prompt) == keys(prompt)[-1]
