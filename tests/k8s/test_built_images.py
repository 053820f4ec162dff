"""The images, really built: what is in them, who runs them, and that they start."""

from __future__ import annotations

import json

import pytest

from specdec.cli.ports import choose_ports
from tests.k8s.built_images import ImageStore
from tests.k8s.test_images import LARGEST_ORCHESTRATOR_BYTES

pytestmark = [pytest.mark.images, pytest.mark.timeout(3600)]

PACKAGES = "/opt/specdec"
LARGEST_FILE_MEGABYTES = 20
"""Of what is no library: more would be weights. The small draft that comes with the code has 10."""
SERVE = """
export SPECDEC_{variable}_PORT={port}
python -m {module} {flags} & service=$!
for attempt in $(seq 60); do python -m specdec.serving.probe {component} && break; sleep 1; done
python -m specdec.serving.probe {component} && echo alive
kill -TERM $service && wait $service && echo ended in order
"""


@pytest.fixture(scope="module", params=("orchestrator", "draft", "target"))
def component(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def image(store: ImageStore, component: str) -> str:
    return store.build(component)


def test_it_runs_without_root_and_has_a_health_check(store: ImageStore, image: str, component: str) -> None:
    configuration = store.configuration(image)
    assert configuration["User"] == "65532:65532"
    assert configuration["Healthcheck"]["Test"] == ["CMD", "python", "-m", "specdec.serving.probe", component]
    assert store.run(image, ["id", "-u"]) == "65532"
    assert "HF_TOKEN" not in json.dumps(configuration)


def test_only_its_home_and_temporary_files_can_be_written(store: ImageStore, image: str) -> None:
    writable = store.run(image, ["sh", "-c", "find / -xdev -type d -writable -not -path '/proc/*' 2>/dev/null || true"])
    for path in writable.splitlines():
        assert path.startswith(("/tmp", "/var/tmp", "/home/specdec", "/dev", "/run", "/proc")), path  # noqa: S108


def test_it_holds_no_weights(store: ImageStore, image: str) -> None:
    large = f"find / -xdev -type f -size +{LARGEST_FILE_MEGABYTES}M -not -name '*.so*' -not -path '/proc/*' 2>/dev/null"
    names = "find / -xdev -name '*.gguf' -o -name '*.safetensors' -o -name 'pytorch_model*' 2>/dev/null"
    assert store.run(image, ["sh", "-c", f"{large} || true"]) == ""
    of_models = store.run(image, ["sh", "-c", f"{names} || true"]).splitlines()
    # The small draft comes with the code.
    assert [path for path in of_models if "/draft_service/checkpoints/" not in path] == []


def test_it_starts_answers_its_health_check_and_ends(store: ImageStore, image: str, component: str) -> None:
    flags = {"draft": "--drafter ngram", "target": "", "orchestrator": ""}[component]
    module = component if component == "orchestrator" else f"{component}_service"
    if component == "target":
        # Without a network a target cannot load its model; that its packages are there is all that is looked at.
        assert "--model" in store.run(image, ["python", "-m", module, "--help"])
        return
    # The container has the network of this machine.
    [port] = choose_ports([("127.0.0.1", 0)])
    script = SERVE.format(variable=component.upper(), port=port, module=module, flags=flags, component=component)
    said = store.run(image, ["sh", "-c", script])
    assert said.splitlines()[-2:] == ["alive", "ended in order"], said


def test_the_orchestrator_is_small(store: ImageStore) -> None:
    image = store.build("orchestrator")
    size = int(store.run(image, ["sh", "-c", f"du -sb {PACKAGES} | cut -f1"]))
    assert size < LARGEST_ORCHESTRATOR_BYTES, f"{size / 1e6:.0f} MB"
    packages = store.run(image, ["python", "-c", "import sys, os; print(os.listdir(sys.path[-1]))"])
    assert "grpc" in packages
    assert "torch" not in packages
