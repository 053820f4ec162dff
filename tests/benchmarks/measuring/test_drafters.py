from typing import get_args

import pytest
import typer

from benchmarks.measuring.drafters import choose_draft_model, parse_drafters
from specdec.cli.drafter_kind import DrafterKind
from specdec.settings import DEFAULT_DRAFT_MODEL, DEFAULT_MODEL


def test_all_are_those_that_services_have() -> None:
    assert {*parse_drafters(["all"], None), "none"} == set(get_args(DrafterKind))


def test_each_is_taken_once_in_the_order_given() -> None:
    assert parse_drafters(["suffix", "ngram", "suffix"], None) == ("suffix", "ngram")
    assert parse_drafters(["suffix", "all"], None)[0] == "suffix"


def test_what_is_not_said_follows_from_the_draft_model() -> None:
    assert parse_drafters(None, None) == ("ngram",)
    assert parse_drafters([], "some-model") == ("model",)


@pytest.mark.parametrize("names", [["none"], ["magic"], ["ngram", ""]])
def test_other_names_are_refused(names: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match="is none of"):
        parse_drafters(names, None)


def test_a_draft_model_for_none_of_them_is_refused() -> None:
    assert parse_drafters(["ngram", "combined"], "some-model") == ("ngram", "combined")
    with pytest.raises(typer.BadParameter, match="does not go with --drafter ngram, suffix"):
        parse_drafters(["ngram", "suffix"], "some-model")


def test_the_draft_model_is_that_of_the_target() -> None:
    assert choose_draft_model(["ngram"], DEFAULT_MODEL, None) is None
    assert choose_draft_model(["ngram", "combined"], DEFAULT_MODEL, None) == DEFAULT_DRAFT_MODEL
    assert choose_draft_model(["model"], "other", "some-model") == "some-model"
    with pytest.raises(typer.BadParameter, match="no draft model comes with other"):
        choose_draft_model(["model"], "other", None)
