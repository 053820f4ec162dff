"""Families of texts: what the second and third are about, and the target's features of each."""

from __future__ import annotations

import pytest
import torch

from draft_service.training import writer as writer_module
from draft_service.training.conversation import Conversation
from draft_service.training.samples import Sample
from draft_service.training.tasks import task_about
from specdec.sampling.noise import Stream, noise_key
from tests.draft_service.training.test_writer import CONVERSATION, write
from tests.specdec.runner.tiny_architectures import plain_states
from tests.tiny_models import EOS_TOKEN_ID, tiny_llama

STOPS = (EOS_TOKEN_ID, 5, 9)
LONGEST_PROMPT = 128


def parts(sample: Sample) -> tuple[str, str]:
    """The user's turn and the answer of a first text, and of another one only the answer."""
    text, start = sample.token_ids.tolist(), sample.answer_start
    turn = text[len(CONVERSATION.opening) : start - len(CONVERSATION.turn_end)]
    answer = [token for token in text[start:] if token not in STOPS]
    return CONVERSATION.tokenizer.decode(turn).strip(), CONVERSATION.tokenizer.decode(answer).strip()


@pytest.mark.parametrize("seed", [0, 3])
def test_a_family_is_a_text_a_task_about_it_and_a_task_about_both(seed: int) -> None:
    texts = write(18, seed=seed)
    shortened = 0
    for first in range(0, 18, 3):
        turn, answer = parts(texts[first])
        answers = [answer, parts(texts[first + 1])[1]]
        for place in (1, 2):
            index = first + place
            task = task_about(turn, answers[:place], noise_key(seed, index, Stream.TARGET))
            whole = CONVERSATION.prompt(task)
            expected = whole[-LONGEST_PROMPT:]
            assert tuple(texts[index].token_ids[: texts[index].answer_start].tolist()) == expected
            # The target's laws are those of its answer alone.
            laws = texts[index].law_positions.tolist()
            assert laws == list(range(len(expected), len(texts[index].token_ids)))
            shortened += len(whole) > LONGEST_PROMPT
    assert shortened < 12


def test_a_family_goes_on_from_any_of_its_texts() -> None:
    texts = write(12, feature_states=(2,))
    for known in ((0,), (0, 1), (1,), (2,), (0, 2), (3, 4, 5, 7)):
        others = write(6, known={index: texts[index] for index in known}, feature_states=(2,))
        assert not set(others) & set(known)
        for index, other in others.items():
            assert torch.equal(other.token_ids, texts[index].token_ids)
            assert torch.equal(other.law_positions, texts[index].law_positions)


@pytest.mark.parametrize("max_batch_rows", [2048, 8])
@pytest.mark.parametrize("numbers", [(2,), (1, 2)])
def test_features_are_those_of_a_plain_run(
    monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...], max_batch_rows: int
) -> None:
    monkeypatch.setattr(writer_module, "_MAX_BATCH_ROWS", max_batch_rows)
    prompts = [tuple(range(20, 90))]
    model = tiny_llama()
    for sample in write(6, feature_states=numbers, prompts=prompts).values():
        text = sample.token_ids.tolist()
        assert sample.features is not None
        assert sample.features.shape == (len(text) - 1, len(numbers), 32)
        assert sample.features.dtype == torch.bfloat16
        expected = plain_states(model, text[:-1])[:, [number - 1 for number in numbers]]
        torch.testing.assert_close(sample.features.float(), expected, atol=1e-2, rtol=1e-2)


def test_without_a_chat_template_too() -> None:
    conversation = Conversation(CONVERSATION.tokenizer, CONVERSATION.files, (0,), ())
    for sample in write(3, conversation=conversation, feature_states=(2,)).values():
        assert sample.features is not None
        expected = plain_states(tiny_llama(), sample.token_ids[:-1].tolist())[:, 1:]
        torch.testing.assert_close(sample.features.float(), expected, atol=1e-2, rtol=1e-2)


def test_unless_asked_for_there_are_none() -> None:
    assert all(sample.features is None for sample in write(3).values())
    with_features = write(6, feature_states=(1,))
    assert all(torch.equal(sample.token_ids, with_features[index].token_ids) for index, sample in write(6).items()), (
        "features change no text"
    )
