"""Manifests as the tests of this folder want them: rendered once, and handed out as copies."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.k8s.built_images import ImageStore
from tests.k8s.rendering import ALL_COMBINATIONS, Combination, Document, render_combinations

Fresh = Callable[[Combination], list[Document]]
"""Gives a copy of what kustomize makes of a combination."""


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    known: dict[Combination, list[Document]] = {}

    def get(combination: Combination) -> list[Document]:
        if combination not in known:
            known.update(render_combinations([combination], tmp_path_factory.mktemp("one")))
        return copy.deepcopy(known[combination])

    return get


@pytest.fixture(scope="session")
def every_combination(tmp_path_factory: pytest.TempPathFactory) -> dict[Combination, list[Document]]:
    """What kustomize makes of each; not to be changed."""
    return render_combinations(ALL_COMBINATIONS, tmp_path_factory.mktemp("all"))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    """Images, each of which is built when it is first asked for."""
    directory = tmp_path_factory.mktemp("images")
    store = ImageStore(directory)
    try:
        store.make_base()
        yield store
    finally:
        # Gigabytes, which pytest would keep for a while.
        shutil.rmtree(directory, ignore_errors=True)
