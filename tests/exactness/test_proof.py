"""The checks pass on the code as it is, and every wrong variant of it fails those that are named for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.exactness import (
    arithmetic_checks,
    coupled_checks,
    coupled_id_checks,
    memory_checks,
    number_checks,
    service_checks,
)
from tests.exactness.wrong import (
    columns,
    coupled,
    drafts,
    memory,
    numbers,
    rejection_and_block,
    rows_and_caches,
    sampling_rules,
)
from tests.exactness.wrong.sabotage import Sabotage

Check = Callable[[], None]
_MISFITS = (AttributeError, NameError, TypeError)
DOCS = Path(__file__).parents[2] / "docs" / "exactness.md"


def _checks(*modules: ModuleType) -> list[Check]:
    return [value for module in modules for name, value in vars(module).items() if name.startswith("check_")]


def _sabotages(*modules: ModuleType) -> list[Sabotage]:
    return [value for module in modules for value in vars(module).values() if isinstance(value, Sabotage)]


CHECKS = _checks(arithmetic_checks, coupled_checks, number_checks, service_checks, coupled_id_checks, memory_checks)
SABOTAGES = _sabotages(rejection_and_block, coupled, numbers, drafts, sampling_rules, rows_and_caches, memory, columns)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_right_code_passes(check: Check) -> None:
    check()


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_wrong_code_is_caught(
    sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sabotage.apply(monkeypatch)
    for check in sabotage.caught_by:
        with pytest.raises(AssertionError):
            check()
    # A variant that does not fit the code proves nothing: services answer that with a refusal, which every check sees.
    assert not any(record.exc_info and isinstance(record.exc_info[1], _MISFITS) for record in caplog.records)


def test_each_check_has_something_to_catch() -> None:
    caught = {check for sabotage in SABOTAGES for check in sabotage.caught_by}
    assert {check.__name__ for check in CHECKS} == {check.__name__ for check in caught}
    assert all(sabotage.caught_by for sabotage in SABOTAGES)


def test_the_table_in_the_docs_is_this_one() -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{sabotage.name}` | {', '.join(_short(check) for check in sabotage.caught_by)} |" for sabotage in SABOTAGES
    ]


def _short(check: Check) -> str:
    return f"`{check.__name__.removeprefix('check_')}`"
