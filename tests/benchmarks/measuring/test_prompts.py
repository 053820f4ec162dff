import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.measuring.prompts import Prompt, PromptFileError, read_prompts, spread


def prompts(**sizes: int) -> list[Prompt]:
    return [Prompt(f"{category}{index}", category, "text") for category, size in sizes.items() for index in range(size)]


def test_the_first_turn_of_each_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        json.dumps({"question_id": 81, "category": "writing", "turns": ["Écris.", "Again."]}),
        "",
        json.dumps({"question_id": "x", "category": "qa", "turns": ["Why?"]}),
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_prompts(path) == [Prompt("81", "writing", "Écris."), Prompt("x", "qa", "Why?")]


@pytest.mark.parametrize(
    "line", ["{", "[]", "3", '{"category": "a", "turns": ["b"]}', '{"question_id": 1, "category": "a", "turns": []}']
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"question_id": 1, "category": "a", "turns": ["b"]}\n' + line + "\n")
    with pytest.raises(PromptFileError, match=r"prompts\.jsonl, line 2: expected an object"):
        read_prompts(path)


def test_a_file_without_prompts_or_none_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(PromptFileError, match="no prompts"):
        read_prompts(tmp_path / "empty")
    with pytest.raises(PromptFileError, match="No such file"):
        read_prompts(tmp_path / "absent")


def test_a_limit_is_spread_over_the_categories() -> None:
    some = spread(prompts(a=5, b=40, c=40), 9)
    assert Counter(prompt.category for prompt in some) == {"a": 3, "b": 3, "c": 3}
    assert [prompt.question_id for prompt in some] == ["a0", "a1", "a3", "b0", "b13", "b26", "c0", "c13", "c26"]


def test_small_categories_leave_their_part_to_others() -> None:
    some = spread(prompts(a=1, b=40, c=2), 10)
    assert Counter(prompt.category for prompt in some) == {"a": 1, "b": 7, "c": 2}


def test_what_is_left_over_goes_to_the_first_categories() -> None:
    assert [prompt.category for prompt in spread(prompts(a=3, b=3, c=3), 4)] == ["a", "a", "b", "c"]


@pytest.mark.parametrize("limit", [6, 100])
def test_a_limit_that_does_not_bind_takes_all(limit: int) -> None:
    everything = prompts(a=2, b=4)
    assert spread(everything, limit) == everything
