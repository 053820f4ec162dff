"""Whatever is drafted, the target writes what it would have written alone."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest
import torch

from specdec.runner.runner import Work
from specdec.sampling.params import SamplingParams
from specdec.v1 import target_pb2
from tests.plain_decoding import GREEDY, SAMPLED, plain_text
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.target_service.driving import Client, Drafting, Drafts, Target, generate
from tests.tiny_models import TINY_VOCAB_SIZE, tiny_llama

PROMPT = (5, 9, 200)
LENGTH = 64
K = 4
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


def text_of(params: SamplingParams) -> list[int]:
    """The target's own text, and a few tokens beyond `LENGTH` for drafts that go too far."""
    return _text(params.is_greedy)


@functools.cache
def _text(is_greedy: bool) -> list[int]:
    return plain_text(tiny_llama(), PROMPT, GREEDY if is_greedy else SAMPLED, LENGTH + 20)


def other_than(token: int) -> int:
    return (token + 1) % TINY_VOCAB_SIZE


def right(client: Client) -> Drafts:
    position = len(client.token_ids)
    return text_of(client.params)[position : position + K], None


def wrong(client: Client) -> Drafts:
    tokens, _ = right(client)
    return [other_than(token) for token in tokens], None


def right_at_first(client: Client) -> Drafts:
    tokens, _ = right(client)
    count = client.round % (K + 1)
    return [*tokens[:count], *map(other_than, tokens[count:])], None


def right_in_the_end(client: Client) -> Drafts:
    tokens, _ = right(client)
    return [other_than(tokens[0]), *tokens[1:]], None


def anything(client: Client) -> Drafts:
    generator = random.Random(client.round)
    return [generator.randrange(TINY_VOCAB_SIZE) for _ in range(generator.randint(0, 9))], None


def far_too_much(client: Client) -> Drafts:
    position = len(client.token_ids)
    return text_of(client.params)[position : position + 16], None


def tree(client: Client) -> Drafts:
    """Random shape; many nodes continue the target's text, the rest are distinct siblings."""
    generator = random.Random(client.round)
    text = text_of(client.params)
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    taken = set()
    for node in range(generator.randint(2, 10)):
        parent = generator.choice([node - 1, node - 1, generator.randrange(-1, node)])
        depth = depths[parent] + 1 if parent >= 0 else 0
        token = text[len(client.token_ids) + depth] if generator.random() < 0.7 else generator.randrange(320)
        while (parent, token) in taken:
            token = other_than(token)
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
        depths.append(depth)
    return tokens, parents


DRAFTINGS: dict[Drafting, Callable[[list[int]], bool]] = {
    right: lambda accepted: set(accepted[1:-1]) == {K},
    wrong: lambda accepted: set(accepted) == {0},
    right_at_first: lambda accepted: set(accepted) == set(range(K + 1)),
    right_in_the_end: lambda accepted: set(accepted) == {0},
    anything: lambda accepted: True,
    far_too_much: lambda accepted: 16 in accepted,
    tree: lambda accepted: {0, 1, 2, 3} <= set(accepted),
}


@BOTH
def test_plain_decoding_is_what_the_model_says(params: SamplingParams) -> None:
    assert generate(Client(Target(), PROMPT, params)) == text_of(params)[:LENGTH]


@pytest.mark.parametrize("drafting", DRAFTINGS, ids=lambda drafting: drafting.__name__)
@BOTH
def test_drafts_do_not_change_the_text(params: SamplingParams, drafting: Drafting) -> None:
    client = Client(Target(), PROMPT, params, max_length=LENGTH)
    assert generate(client, drafting) == text_of(params)[:LENGTH]
    assert DRAFTINGS[drafting](client.num_accepted), client.num_accepted


@pytest.mark.parametrize("prompt", [(7,), (7, 8, 9)])
def test_the_first_draft_token_is_judged_too(prompt: tuple[int, ...]) -> None:
    # B03: K = 1, and always a token the target would never pick.
    text = plain_text(tiny_llama(), prompt, GREEDY, 20)
    client = Client(Target(), prompt, GREEDY, max_length=20)
    generate(client, lambda client: ([other_than(text[len(client.token_ids)])], None))
    assert client.token_ids == text
    assert set(client.num_accepted) == {0}


def next_logits(client: Client) -> torch.Tensor:
    """What the engine would compute next from its cache, which is left as it was."""
    sequence = client.target.engine._sequences[client.connection][client.sequence_id]
    known = sequence.cache.length
    (logits,) = client.target.runner.forward([Work(sequence.cache, client.token_ids[known:], 1)])
    sequence.cache.truncate(known)
    return logits[0]


@BOTH
def test_the_cache_is_right_after_every_round(params: SamplingParams) -> None:
    # B04: 0, 2, K, 1, 0, ... accepted, and windows that are trees in between.
    client = Client(Target(), PROMPT, params)
    client.open()
    text = text_of(params)
    for count in (0, 2, K, 1, 0, K, 3):
        position = len(client.token_ids)
        drafts = text[position : position + K]
        client.verify([*drafts[:count], *map(other_than, drafts[count:])])
        assert client.num_accepted[-1] == count
        expected = plain_logits(client.target.model, client.token_ids)[-1]
        torch.testing.assert_close(next_logits(client), expected, atol=1e-4, rtol=0)
        # The right tokens are nodes 1, 3 and 4 of a tree.
        position = len(client.token_ids)
        drafts = text[position : position + 3]
        nodes = [other_than(drafts[0]), drafts[0], other_than(drafts[1]), drafts[1], drafts[2], 3]
        verdict = client.verify(nodes, [-1, -1, 1, 1, 3, 0])
        assert list(verdict.accepted_nodes) == [1, 3, 4]
        expected = plain_logits(client.target.model, client.token_ids)[-1]
        torch.testing.assert_close(next_logits(client), expected, atol=1e-4, rtol=0)


def test_a_window_is_cut_where_max_length_leaves_no_room() -> None:
    # B06: what counts is what was judged, and the answer names absolute lengths.
    text = text_of(GREEDY)
    client = Client(Target(), PROMPT, GREEDY, max_length=10)
    client.open()
    verdict = client.verify(text[4:14])
    assert (verdict.num_judged_tokens, list(verdict.accepted_nodes), verdict.committed_length) == (
        5,
        [0, 1, 2, 3, 4],
        10,
    )
    assert verdict.next_token_kind == target_pb2.NEXT_TOKEN_KIND_BONUS
    assert client.token_ids == text[:10]


@pytest.mark.parametrize(
    ("parents", "right_nodes"), [([-1, -1, 1, 2], [1, 2, 3]), ([-1, -1, 0, 2], [0, 2, 3]), ([-1, 0, 0, 2], [0, 2, 3])]
)
def test_a_tree_is_cut_at_the_first_node_that_is_too_deep(parents: list[int], right_nodes: list[int]) -> None:
    text = text_of(GREEDY)
    client = Client(Target(), PROMPT, GREEDY, max_length=7)
    client.open()
    # Two tokens may be accepted; the last node would be the third.
    nodes = [other_than(text[4])] * 4
    for depth, node in enumerate(right_nodes):
        nodes[node] = text[4 + depth]
    verdict = client.verify(nodes, parents)
    assert (verdict.num_judged_tokens, list(verdict.accepted_nodes)) == (3, right_nodes[:2])
    assert client.token_ids == text[:7]


@pytest.mark.parametrize("parents", [None, [-1, -1]])
def test_with_room_for_one_token_only_no_draft_is_judged(parents: list[int] | None) -> None:
    text = text_of(GREEDY)
    client = Client(Target(), PROMPT, GREEDY, max_length=5)
    client.open()
    verdict = client.verify([text[4], 3], parents)
    assert (verdict.num_judged_tokens, list(verdict.accepted_nodes)) == (0, [])
    assert client.token_ids == text[:5]
