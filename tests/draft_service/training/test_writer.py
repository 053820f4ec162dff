"""The target's texts: the frame, the laws, and that a text depends on its number and the seed alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import LlamaForCausalLM

from draft_service.training import writer as writer_module
from draft_service.training.conversation import Conversation
from draft_service.training.samples import NUM_TOP, Sample
from draft_service.training.writer import TEMPERATURE, Writer, score_in_float32
from specdec.runner.cache import SequenceCache
from specdec.runner.hidden_states import HiddenStates
from specdec.runner.runner import ModelRunner, Work
from tests.draft_service.training.running import tied_llama
from tests.specdec.runner.tiny_architectures import plain_logits
from tests.tiny_models import EOS_TOKEN_ID, TINY_VOCAB_SIZE, tiny_llama, tiny_tokenizer_files

CONVERSATION = Conversation.of(tiny_tokenizer_files())


def write(
    count: int,
    *,
    known: Mapping[int, Sample] = MappingProxyType({}),
    prompts: Sequence[Sequence[int]] = (),
    stops: Sequence[int] = (EOS_TOKEN_ID, 5, 9),
    conversation: Conversation = CONVERSATION,
    seed: int = 0,
    num_sequences: int = 6,
    max_length: int = 256,
    feature_states: tuple[int, ...] = (),
) -> dict[int, Sample]:
    """The texts with the first `count` numbers that are not known."""
    model = tiny_llama()
    hidden_states = HiddenStates(model)
    if feature_states:
        hidden_states.watch(feature_states)
    writer = Writer(
        ModelRunner(model, TINY_VOCAB_SIZE, hidden_states),
        conversation,
        stops,
        prompts,
        seed=seed,
        num_sequences=num_sequences,
        max_answer_tokens=20,
        max_length=max_length,
        feature_states=feature_states,
    )
    found: dict[int, Sample] = {}
    wanted = list(itertools.islice((index for index in itertools.count() if index not in known), count))
    for sample in writer.samples(known):
        found[sample.index] = sample
        if all(index in found for index in wanted):
            return {index: found[index] for index in wanted}
    raise AssertionError


def test_a_text_is_a_turn_and_an_answer_in_their_frame() -> None:
    for index, sample in write(15).items():
        text = tuple(sample.token_ids.tolist())
        opening, turn_end = CONVERSATION.opening, CONVERSATION.turn_end
        # What carries an earlier text may be too long, and then loses its beginning.
        assert text[: len(opening)] == opening or (index % 3 and sample.answer_start == 128)
        assert text[sample.answer_start - len(turn_end) : sample.answer_start] == turn_end
        answer = text[sample.answer_start :]
        longest = 40 if index in (0, 12) else 20
        assert 1 <= len(answer) <= longest
        assert len(answer) == longest or answer[-1] in (EOS_TOKEN_ID, 5, 9)
        assert not set(answer[:-1]) & {EOS_TOKEN_ID, 5, 9}
        turn = text[len(opening) : sample.answer_start - len(turn_end)]
        # The others are asked about what was written, in words that may have any tokens.
        assert index % 3 or not set(turn) & {EOS_TOKEN_ID, 5, 9}


def test_laws_are_those_of_the_target_alone() -> None:
    model = tiny_llama()
    for index, sample in write(4).items():
        text = sample.token_ids.tolist()
        logprobs = torch.log_softmax(plain_logits(model, text), -1)
        positions = sample.law_positions.tolist()
        written = [*range(len(CONVERSATION.opening), sample.answer_start - len(CONVERSATION.turn_end) + 1)]
        assert set(positions) >= set(range(sample.answer_start, len(text)))
        assert set(positions) - set(range(sample.answer_start, len(text))) <= (
            set(written) if index % 3 == 0 else set()
        )
        for row, position in enumerate(positions):
            top = logprobs[position - 1].topk(NUM_TOP)
            assert torch.equal(sample.top_ids[row].long(), top.indices)
            assert torch.allclose(sample.top_logprobs[row].float(), top.values, atol=5e-3)


def test_a_text_does_not_depend_on_its_neighbours() -> None:
    alone, together = write(7, num_sequences=1), write(7, num_sequences=7)
    for index, sample in alone.items():
        assert torch.equal(sample.token_ids, together[index].token_ids)
    # A run that goes on: of one family all is known, of another its middle, of a third its beginning.
    known = {index: alone[index] for index in (0, 1, 2, 4, 6)}
    others = write(3, known=known)
    assert list(others) == [3, 5, 7]
    twice = write(8, num_sequences=2)
    assert all(torch.equal(others[index].token_ids, twice[index].token_ids) for index in others)


def test_seeds_and_numbers_give_different_texts() -> None:
    texts = [tuple(sample.token_ids.tolist()) for seed in (0, 1) for sample in write(6, seed=seed).values()]
    assert len(set(texts)) == len(texts)


def test_every_other_answer_is_greedy_of_each_place_in_a_family() -> None:
    greedy = {
        sample.index: torch.equal(
            sample.top_ids[sample.law_positions >= sample.answer_start, 0], sample.token_ids[sample.answer_start :]
        )
        for sample in write(12, stops=()).values()
    }
    assert [index for index in greedy if greedy[index]] == [1, 3, 5, 7, 9, 11]
    assert {index % 3 for index in greedy if greedy[index]} == {0, 1, 2}


def test_other_answers_follow_the_law_at_the_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 top tokens instead of 64, so that most tokens come from beyond them. p-value above 1e-4, fixed seed."""
    monkeypatch.setattr(writer_module, "NUM_TOP", 4)
    prompt = (7, 8, 11)
    count = 3000
    samples = write(count, prompts=[prompt], stops=range(TINY_VOCAB_SIZE), num_sequences=500)
    first = torch.tensor([int(sample.token_ids[3]) for index, sample in samples.items() if index % 6 == 2])
    logits = ModelRunner(tiny_llama(), TINY_VOCAB_SIZE).forward([Work(SequenceCache(), prompt, 1)])[0][0]
    expected = torch.softmax(logits.double() / TEMPERATURE, -1) * len(first)
    observed = torch.bincount(first, minlength=TINY_VOCAB_SIZE).double()
    common = expected >= 5
    assert 5 < int(common.sum()) < TINY_VOCAB_SIZE
    table = [torch.cat([values[common], values[~common].sum()[None]]).numpy() for values in (observed, expected)]
    assert chisquare(*table).pvalue > 1e-4


def test_prompts_are_answered_by_the_last_text_of_a_family() -> None:
    prompts = [tuple(range(20, 30)), tuple(range(40, 45))]
    without = write(12)
    for index, sample in write(12, prompts=prompts).items():
        if index % 3 == 2:
            prompt = prompts[index // 3 % 2]
            assert tuple(sample.token_ids[: sample.answer_start].tolist()) == prompt
            assert sample.law_positions.tolist() == list(range(len(prompt), len(sample.token_ids)))
        else:
            assert torch.equal(sample.token_ids, without[index].token_ids)


def test_long_prompts_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [tuple(range(20, 90)), tuple(range(100, 133))]
    whole = write(6, prompts=prompts)
    monkeypatch.setattr(writer_module, "_MAX_BATCH_ROWS", 8)
    chunked = write(6, prompts=prompts)
    assert all(torch.equal(whole[index].token_ids, chunked[index].token_ids) for index in whole)


def test_a_text_ends_with_the_context() -> None:
    prompts = [tuple(range(20, 220))]
    for index, sample in write(4, prompts=prompts, stops=(), max_length=40).items():
        assert len(sample.token_ids) <= 40
        assert sample.answer_start == 20 or index % 3 == 0


def test_without_a_chat_template_there_is_one_text() -> None:
    conversation = Conversation(CONVERSATION.tokenizer, CONVERSATION.files, (0,), ())
    for sample in write(4, conversation=conversation).values():
        assert sample.answer_start == 1
        assert sample.law_positions.tolist() == list(range(1, len(sample.token_ids)))


@pytest.mark.parametrize("make", [tiny_llama, tied_llama], ids=["untied", "tied"])
def test_logits_of_a_half_precision_model_are_computed_in_float32(make: Callable[[], LlamaForCausalLM]) -> None:
    model: Any = make()
    model.to(torch.bfloat16)
    embeddings, head = model.model.embed_tokens.weight, model.lm_head.weight.float()
    hidden: list[torch.Tensor] = []
    model.model.norm.register_forward_hook(lambda *arguments: hidden.append(arguments[2]))
    score_in_float32(model)
    logits = ModelRunner(model, TINY_VOCAB_SIZE).forward([Work(SequenceCache(), [3, 4, 5], 3)])[0]
    assert torch.allclose(logits, hidden[0][0].float() @ head.T, atol=1e-5)
    assert model.model.embed_tokens.weight is embeddings
    assert embeddings.dtype == torch.bfloat16
