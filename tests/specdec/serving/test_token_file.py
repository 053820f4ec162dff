from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from specdec.serving.security_error import SecurityError
from specdec.serving.token_file import TokenEntry, entry_for, new_token, parse_token_file, read_token_file
from specdec.serving.token_limits import Limits, Rate

PATH = Path("tokens")
DIGEST = "ab" * 32
OTHER_DIGEST = "cd" * 32


def test_a_line_is_a_name_a_digest_and_limits() -> None:
    entries = parse_token_file(
        f"# comment\n\nalice {DIGEST}\n"
        f"  bob@example.org\t{OTHER_DIGEST} tokens=100000/m requests=10/s concurrent=4 tenant=acme # his\n",
        PATH,
    )
    assert entries == (
        TokenEntry("alice", bytes.fromhex(DIGEST), Limits()),
        TokenEntry("bob@example.org", bytes.fromhex(OTHER_DIGEST), Limits(Rate(10, "s"), 4, Rate(100000, "m")), "acme"),
    )
    assert parse_token_file("\n".join(entry.line() for entry in entries), PATH) == entries
    assert parse_token_file("", PATH) == ()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("alice", "a name and the SHA-256"),
        (f"alice {DIGEST[:-1]}", "a name and the SHA-256"),
        (f"alice {DIGEST.upper()}", "a name and the SHA-256"),
        (f"-alice {DIGEST}", "a name and the SHA-256"),
        (f"{'a' * 65} {DIGEST}", "a name and the SHA-256"),
        (f"alice {DIGEST} speed=4", "what may follow is requests=, concurrent=, tokens= and tenant="),
        (f"alice {DIGEST} concurrent=4 concurrent=5", "each once"),
        (f"alice {DIGEST} requests=10", "such as 10/s or 600/m"),
        (f"alice {DIGEST} requests=0/s", "such as 10/s or 600/m"),
        (f"alice {DIGEST} tokens=1e9/m", "such as 10/s or 600/m"),
        (f"alice {DIGEST} concurrent=0", "from 1 to"),
        (f"alice {DIGEST} concurrent=-1", "from 1 to"),
        (f"alice {DIGEST} concurrent={'9' * 30}", "from 1 to"),
        (f"alice {DIGEST} tenant=", "tenant= is a name"),
        (f"alice {DIGEST} tenant=a/b", "tenant= is a name"),
        (f"alice {OTHER_DIGEST}\nalice {DIGEST}", "line 3: another line has the same name or token"),
        (f"alice {DIGEST}\nbob {DIGEST}", "line 3: another line has the same name or token"),
    ],
)
def test_a_malformed_line_is_named_and_not_shown(line: str, complaint: str) -> None:
    with pytest.raises(SecurityError, match=r"tokens, line [23]") as refused:
        parse_token_file(f"\n{line}\n", PATH)
    assert complaint in str(refused.value)
    assert DIGEST[:16] not in str(refused.value)


def test_a_new_token_is_random_and_only_its_digest_is_kept() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    token = tokens.pop()
    assert token.startswith("specdec_")
    assert len(token) >= 40
    entry = entry_for(token, "alice", Limits())
    assert entry.line() == f"alice {hashlib.sha256(token.encode()).hexdigest()}"
    assert entry.digest.hex() not in repr(entry)
    with pytest.raises(SecurityError, match="a name has up to 64"):
        entry_for(token, "a b", Limits())


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="tokens cannot be read: no such file"):
        read_token_file(tmp_path / "tokens")
    with pytest.raises(SecurityError, match="cannot be read: is a directory"):
        read_token_file(tmp_path)
