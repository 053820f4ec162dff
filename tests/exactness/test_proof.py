"""The checks pass on the code as it is, and every wrong variant of it fails those that are named for it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from tests.exactness import (
    arithmetic_checks,
    coupled_checks,
    coupled_id_checks,
    more_sabotage,
    number_checks,
    service_checks,
)
from tests.exactness.sabotage import Sabotage

MODULES = (arithmetic_checks, coupled_checks, coupled_id_checks, number_checks, service_checks)


def _checks(module: ModuleType) -> list[Callable[[], None]]:
    return [value for name, value in vars(module).items() if name.startswith("check_")]


@pytest.mark.parametrize("check", [check for module in MODULES for check in _checks(module)], ids=lambda c: c.__name__)
def test_check_passes(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("sabotage", more_sabotage.SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_wrong_variant_is_caught(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage.apply(monkeypatch)
    assert sabotage.caught_by
    for check in sabotage.caught_by:
        with pytest.raises(AssertionError):
            check()
