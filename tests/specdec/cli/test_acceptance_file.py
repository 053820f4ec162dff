import json
from pathlib import Path

import pytest

from specdec.cli.acceptance_file import AcceptanceFileError, read_acceptance


def cell(drafter: str, temperature: float, k: int, length: float | None) -> dict[str, object]:
    return {
        "drafter": drafter,
        "temperature": temperature,
        "num_draft_tokens": k,
        "overall": {"mean_acceptance_length": length},
    }


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """As `benchmarks.acceptance` prints it: tables, and the result in the last line."""
    path = tmp_path / "acceptance.txt"
    cells = [
        cell("model", 0.0, 1, 1.8),
        cell("model", 0.0, 2, 2.2),
        cell("model", 0.8, 2, 1.75),
        cell("ngram", 0.0, 2, 1.0),
        cell("ngram", 0.0, 0, None),
    ]
    path.write_text("a table\n" + json.dumps({"benchmark": "acceptance", "cells": cells}) + "\n")
    return path


def test_lengths_of_several_k_give_rates_by_position(measured: Path) -> None:
    assert read_acceptance(measured, "model", 0.0).rates == pytest.approx((0.8, 0.5))
    # 1 + a + a^2 = 1.75
    assert read_acceptance(measured, "model", 0.8).rates == pytest.approx((0.5, 0.5))
    assert read_acceptance(measured, "ngram").rates == pytest.approx((0.0, 0.0))


def test_what_is_not_clear_is_named(measured: Path) -> None:
    with pytest.raises(
        AcceptanceFileError, match=r"several.*model at temperature 0, drafter model at temperature 0\.8"
    ):
        read_acceptance(measured, "model")
    with pytest.raises(AcceptanceFileError, match="no condition fits; there is drafter model at temperature 0"):
        read_acceptance(measured, "suffix")


def test_speedup(tmp_path: Path) -> None:
    path = tmp_path / "speedup.json"
    result = {
        "benchmark": "speedup",
        "settings": {"num_draft_tokens": 1, "temperature": 0.0},
        "drafters": {"model": {"overall": {"mean_acceptance_length": 1.25}}},
    }
    path.write_text(json.dumps(result))
    assert read_acceptance(path).rates == pytest.approx((0.25,))


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "{}", "3", '{"benchmark": "load"}', '{"benchmark": "acceptance", "cells": [{}]}'],
)
def test_a_file_that_is_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(AcceptanceFileError, match=r"other\.json: no result of"):
        read_acceptance(path)


def test_a_length_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"benchmark": "acceptance", "cells": [cell("model", 0.0, 1, 7.0)]}))
    with pytest.raises(AcceptanceFileError, match="between 1 and K"):
        read_acceptance(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AcceptanceFileError, match="No such file"):
        read_acceptance(tmp_path / "none.json")
