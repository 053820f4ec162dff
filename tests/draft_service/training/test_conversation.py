from __future__ import annotations

import dataclasses

import pytest

from draft_service.training.conversation import Conversation
from orchestrator.chat_template import ChatTemplate
from specdec.models.errors import ModelError
from specdec.tokenizer_files import TokenizerFiles
from tests.tiny_models import BOS_TOKEN_ID, EOS_TOKEN_ID, tiny_tokenizer_files


def with_template(template: str) -> TokenizerFiles:
    return dataclasses.replace(tiny_tokenizer_files(), chat_template=template)


def test_frame_of_a_users_turn() -> None:
    conversation = Conversation.of(tiny_tokenizer_files())
    tokenizer = conversation.tokenizer
    assert tokenizer.decode(list(conversation.opening)) == "user: "
    assert tokenizer.decode(list(conversation.turn_end)) == "\nassistant:"


def test_a_prompt_is_that_of_the_orchestrator() -> None:
    files = with_template("{{ bos_token }}{% for m in messages %}<{{ m.content | trim }}>{% endfor %}|")
    rendered = ChatTemplate(files.chat_template, files.special_tokens).render([{"role": "user", "content": " hi "}])
    expected = files.tokenizer().encode(rendered, add_special_tokens=False).ids
    assert list(Conversation.of(files).prompt(" hi ")) == expected
    assert expected[0] == BOS_TOKEN_ID


def test_without_a_template_a_text_begins_with_its_begin_token() -> None:
    conversation = Conversation.of(with_template(""))
    assert conversation.opening == (BOS_TOKEN_ID,)
    assert conversation.turn_end == ()
    assert conversation.prompt("") == (BOS_TOKEN_ID,)
    assert conversation.tokenizer.decode(list(conversation.prompt("some text"))) == "some text"


def test_without_a_begin_token_it_begins_with_the_end_token() -> None:
    files = dataclasses.replace(with_template(""), special_tokens={"eos_token": "<|eos|>"})
    assert Conversation.of(files).opening == (EOS_TOKEN_ID,)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (with_template("{{ raise_exception('no') }}"), "cannot render a user's turn"),
        (with_template("{% for"), "cannot render a user's turn"),
        (with_template("always the same"), "puts no frame around a user's text"),
        (with_template("{{ messages[0].content }}"), "puts no frame around a user's text"),
        (
            dataclasses.replace(with_template(""), special_tokens={}),
            "neither a chat template nor a begin-of-text token",
        ),
    ],
)
def test_what_cannot_be_sampled_from_is_refused(files: TokenizerFiles, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Conversation.of(files)
