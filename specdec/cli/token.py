"""`specdec token`: tokens for clients of an orchestrator."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Tokens that clients of an orchestrator show.", no_args_is_help=True)


@app.callback()
def token() -> None:
    """Tokens that clients of an orchestrator show."""


@app.command("new")
def new(
    name: Annotated[str, typer.Option(help="Whose token it is; to find its line again.")],
    requests: Annotated[
        str | None, typer.Option(metavar="N/s|N/m", help="Most requests a second or a minute; default: no limit.")
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Most requests at once; default: no limit.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="N/s|N/m", help="Most tokens, of prompts and generated; default: no limit."),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="Tenant of its holder's requests, which no other token may claim then; default: none."),
    ] = None,
) -> None:
    """Make a token. Prints the token, which is kept nowhere, and then the line for the file of the orchestrator."""
    from specdec.serving.security_error import SecurityError
    from specdec.serving.token_file import entry_for, new_token
    from specdec.serving.token_limits import Limits, Rate

    try:
        limits = Limits(
            requests=None if requests is None else Rate.parse(requests),
            concurrent=concurrent,
            tokens=None if tokens is None else Rate.parse(tokens),
        )
        made = new_token()
        line = entry_for(made, name, limits, tenant or "").line()
    except (ValueError, SecurityError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo("the token, for its holder; it is not shown again:", err=True)
    typer.echo(made)
    typer.echo("the line for the file given to the orchestrator by --token-file:", err=True)
    typer.echo(line)
