"""Prompts for benchmarks that run as processes."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"question_id": index, "category": category, "turns": [f"number {index}"]}
        for index, category in enumerate(["a", "a", "a", "b", "b"])
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
