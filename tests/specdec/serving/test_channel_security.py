from __future__ import annotations

import pytest

from specdec.serving.binding import is_loopback_target
from specdec.serving.certificates import CertificateFiles
from specdec.serving.channel import open_channel
from specdec.serving.channel_security import ChannelSecurity
from specdec.serving.security_error import SecurityError

SECRET = "the-secret-of-this-test-0123456789"  # noqa: S105


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "dns:///localhost:1", "dns:localhost:1"),
        *("ipv4:127.0.0.1:1,127.0.0.2:1", "ipv6:[::1]:1", "unix:/run/specdec", "unix-abstract:specdec", "::1"),
    ],
)
def test_these_are_this_machine(address: str) -> None:
    assert is_loopback_target(address)


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1:1", "example.org:1", "dns:///example.org:1", "dns://127.0.0.1/example.org:1", "[2001:db8::1]:1"),
        *("ipv4:127.0.0.1:1,10.0.0.1:1", "localhost.example.org:1", "127.0.0.1.example.org:1", "xds:///targets", ""),
        *("unix.example.org:1", "passthrough:///10.0.0.1:1", "unix.localhost:1"),
    ],
)
def test_these_may_be_other_machines(address: str) -> None:
    assert not is_loopback_target(address)


async def test_a_secret_goes_to_another_machine_over_tls_or_if_that_is_wanted() -> None:
    with pytest.raises(SecurityError, match=r"not sent to 192\.0\.2\.1:1 without TLS") as refused:
        open_channel("192.0.2.1:1", max_message_bytes=1, security=ChannelSecurity(secret=lambda: SECRET))
    assert SECRET not in str(refused.value)
    for security in (
        ChannelSecurity(secret=lambda: SECRET, files=CertificateFiles()),
        ChannelSecurity(secret=lambda: SECRET, allows_plain_secret=True),
        ChannelSecurity(),
    ):
        await open_channel("192.0.2.1:1", max_message_bytes=1, security=security).close()
    assert SECRET not in repr(ChannelSecurity(secret=lambda: SECRET))


@pytest.mark.parametrize("secret", ["", "with space", "line\nbreak", "ünsendable", "nul\0"])
def test_a_secret_that_cannot_be_sent_is_not_shown(secret: str) -> None:
    with pytest.raises(SecurityError, match="cannot be sent") as refused:
        ChannelSecurity(secret=lambda: secret).metadata("127.0.0.1:1")
    assert not secret or secret not in str(refused.value)
