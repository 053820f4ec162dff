"""The report and the model card of a finished run."""

from __future__ import annotations

from typing import Any

import pytest

from draft_service.trained_draft import load_trained_draft
from draft_service.training.model_card import model_card
from draft_service.training.report import HELD_OUT, NUM_DRAFT_TOKENS, OVERALL, TEMPERATURES, measure_draft
from specdec.models.loading import load_model
from tests.draft_service.conftest import Trained

PROMPTS = {"a": [[5, 6, 7], [8, 9]], "b": [[20, 21, 22, 23]], HELD_OUT: [[30, 31]]}


@pytest.fixture(scope="module")
def measured(trained: Trained) -> dict[str, Any]:
    draft = load_trained_draft(str(trained.out), device="cpu")
    target = load_model(str(trained.target), device="cpu")
    return measure_draft(draft, target, PROMPTS, seed=0, tell=lambda _: None)


def test_every_category_k_and_temperature(measured: dict[str, Any]) -> None:
    found = [(entry["temperature"], entry["category"], entry["num_draft_tokens"]) for entry in measured["acceptance"]]
    expected = [
        (temperature, category, count)
        for temperature in TEMPERATURES
        for category in ("a", "b", HELD_OUT, OVERALL)
        for count in NUM_DRAFT_TOKENS
    ]
    assert found == expected


def test_overall_is_all_but_what_the_target_asked_itself(measured: dict[str, Any]) -> None:
    rounds: dict[tuple[float, int], dict[str, int]] = {}
    for entry in measured["acceptance"]:
        key = (entry["temperature"], entry["num_draft_tokens"])
        rounds.setdefault(key, {})[entry["category"]] = entry["rounds"]
    assert all(of["a"] + of["b"] == of[OVERALL] for of in rounds.values())


def test_acceptance_agrees_with_itself(measured: dict[str, Any]) -> None:
    for entry in measured["acceptance"]:
        rates = entry["accepted_at_position"]
        assert len(rates) == entry["num_draft_tokens"]
        assert rates == sorted(rates, reverse=True)
        assert entry["mean_acceptance_length"] == pytest.approx(1 + sum(rates), abs=1e-3)
        assert 0 <= entry["acceptance_rate"] <= 1


def test_predicted_speedup_follows_from_the_step_times(measured: dict[str, Any]) -> None:
    times = measured["step_seconds"]
    assert set(times["target"]) == {"1", "3", "5", "9"}
    assert measured["step_ratio"] == pytest.approx(times["draft"]["1"] / times["target"]["1"], abs=1e-3)
    for entry in measured["acceptance"]:
        count = entry["num_draft_tokens"]
        round_seconds = count * times["draft"]["1"] + times["target"][str(count + 1)]
        expected = entry["mean_acceptance_length"] * times["target"]["1"] / round_seconds
        assert entry["predicted_speedup"] == pytest.approx(expected, abs=2e-3)


def test_the_same_draft_gets_the_same_report(trained: Trained, measured: dict[str, Any]) -> None:
    draft = load_trained_draft(str(trained.out), device="cpu")
    target = load_model(str(trained.target), device="cpu")
    again = measure_draft(draft, target, PROMPTS, seed=0, tell=lambda _: None)
    for entry, before in zip(again["acceptance"], measured["acceptance"], strict=True):
        assert {**entry, "predicted_speedup": 0} == {**before, "predicted_speedup": 0}


def test_the_target_as_its_own_draft_is_always_accepted(trained: Trained) -> None:
    target = load_model(str(trained.target), device="cpu")
    report = measure_draft(target, target, PROMPTS, seed=0, tell=lambda _: None)
    assert {entry["acceptance_rate"] for entry in report["acceptance"]} == {1.0}


def test_the_card_has_the_numbers_of_the_report(trained: Trained) -> None:
    report = trained.report
    card = model_card(report)
    assert card == (trained.out / "README.md").read_text()
    for entry in report["acceptance"]:
        assert f"{entry['mean_acceptance_length']:.2f} ({entry['predicted_speedup']:.2f})" in card
    header = next(line for line in card.splitlines() if line.startswith("| category"))
    assert header.count("|") == 2 + len(NUM_DRAFT_TOKENS) * len(TEMPERATURES)


def test_the_card_counts_prompts_given(trained: Trained) -> None:
    report = trained.report
    assert "prompts given" not in model_card(report)
    report["training"]["num_prompts"] = 1200
    assert "answers to 1,200 prompts given" in model_card(report)
