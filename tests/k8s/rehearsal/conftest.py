"""What rehearsals run with."""

from __future__ import annotations

import pytest

from tests.chaos.models import save_models


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Tiny models; and a row gives the same bits in any batch, so that texts can be compared."""
    target, draft = save_models(tmp_path_factory.mktemp("models"))
    return {
        "target": {"SPECDEC_TARGET_MODEL": str(target), "SPECDEC_TARGET_LINEAR_KERNEL": "invariant"},
        "draft": {"SPECDEC_DRAFT_MODEL": str(draft)},
    }
