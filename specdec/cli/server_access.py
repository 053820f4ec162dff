"""Options of commands that call a server: how to know it, and how to be known by it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from specdec.serving.channel_security import ChannelSecurity

Tls = Annotated[
    bool, typer.Option("--tls", envvar="SPECDEC_TLS", help="Use TLS, and trust the usual public authorities.")
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca", envvar="SPECDEC_TLS_CA", help="Use TLS, and trust the authorities in this PEM file instead."
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", envvar="SPECDEC_TLS_CERT", help="PEM file with a certificate to show to the server."),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", envvar="SPECDEC_TLS_KEY", help="PEM file with the key of --tls-cert.")
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="SPECDEC_TOKEN",
        show_default=False,
        help="Token to show. All users of a machine see its command lines: better set SPECDEC_TOKEN, or --token-from.",
    ),
]
TokenFrom = Annotated[
    Path | None,
    typer.Option("--token-from", envvar="SPECDEC_TOKEN_FROM", help="File with the token to show, and nothing else."),
]
InsecureToken = Annotated[
    bool,
    typer.Option("--insecure-token", help="Send the token without TLS to another machine too; others can read it."),
]


def server_security(
    *,
    tls: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token: str | None,
    token_from: Path | None,
    insecure_token: bool,
) -> ChannelSecurity | None:
    """What the options say; None: nothing, which is plaintext without a token.

    Raises:
        typer.BadParameter: two of them do not go together.
    """
    from specdec.serving.certificates import CertificateFiles
    from specdec.serving.channel_security import ChannelSecurity
    from specdec.serving.secrets import read_secrets

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key go together")
    files = None
    if tls or tls_ca is not None:
        files = CertificateFiles(tls_cert, tls_key, tls_ca)
    elif tls_cert is not None:
        raise typer.BadParameter("--tls-cert is shown over TLS; say --tls-ca, or --tls")
    secret = None
    # A file that is named wins over a variable that is set for all commands.
    if token_from is not None:
        path = token_from
        secret = lambda: read_secrets(path)[0]  # noqa: E731
    elif token:
        given = token.strip()
        secret = lambda: given  # noqa: E731
    if files is None and secret is None:
        return None
    return ChannelSecurity(files=files, secret=secret, allows_plain_secret=insecure_token)
