import pytest

from benchmarks.links.redirection import redirected
from specdec.cli.service_group import ServiceSpec

SPEC = ServiceSpec(
    "orchestrator", ("python", "--target=127.0.0.1:1", "--draft=127.0.0.1:2", "127.0.0.1:1"), "127.0.0.1:3"
)


def test_a_relay_is_put_in_front_of_a_service() -> None:
    changed = redirected(SPEC, {"127.0.0.1:1": "127.0.0.1:9"})
    assert changed.command == ("python", "--target=127.0.0.1:9", "--draft=127.0.0.1:2", "127.0.0.1:1")
    assert changed.address == SPEC.address


def test_an_address_that_nobody_calls() -> None:
    with pytest.raises(ValueError, match=r"orchestrator does not call 127\.0\.0\.1:7"):
        redirected(SPEC, {"127.0.0.1:7": "127.0.0.1:9"})
