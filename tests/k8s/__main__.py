"""`python -m tests.k8s DIRECTORY`: render every combination into files there, and check them all."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path

import yaml

from tests.k8s.manifests import expected_problems, problems
from tests.k8s.rendering import ALL_COMBINATIONS, render_combinations
from tests.k8s.validation import VERSIONS, validation_problems


def main(directory: Path) -> int:
    """Render and check; gives the exit status."""
    shutil.rmtree(directory, ignore_errors=True)
    rendered = render_combinations(ALL_COMBINATIONS, directory / "kustomizations")
    found = []
    for combination, documents in rendered.items():
        (directory / f"{combination.name}.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
        wrong, expected = problems(documents), expected_problems(combination)
        found += [f"{combination.name}: {problem}" for problem in wrong if problem not in expected]
        found += [f"{combination.name}: not noticed: {problem}" for problem in expected if problem not in wrong]
    for version in VERSIONS:
        found += validation_problems(itertools.chain.from_iterable(rendered.values()), version)
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(
            f"{len(rendered)} combinations are rendered in {directory} and valid for Kubernetes {', '.join(VERSIONS)}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
