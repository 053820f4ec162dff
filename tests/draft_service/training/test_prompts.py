from __future__ import annotations

import json
from pathlib import Path

import pytest

from draft_service.training.prompts import Prompt, read_prompts
from specdec.models.errors import ModelError


def test_first_turns_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        json.dumps({"question_id": 1, "category": "a", "turns": ["é one", "later"]}),
        "",
        json.dumps({"question_id": "2", "category": "b", "turns": ["two"]}),
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_prompts(path) == [Prompt("a", "é one"), Prompt("b", "two")]


@pytest.mark.parametrize(
    "line", ["{", "[]", '"text"', '{"category": "a"}', '{"category": "a", "turns": []}', '{"turns": ["x"]}']
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"category": "a", "turns": ["x"]}\n' + line)
    with pytest.raises(ModelError, match=r"prompts.jsonl, line 2, is not an object"):
        read_prompts(path)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ModelError, match="has no prompts"):
        read_prompts(tmp_path / "empty")
    with pytest.raises(ModelError, match="cannot be read"):
        read_prompts(tmp_path / "missing")
