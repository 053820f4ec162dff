"""`specdec trace`: a request's rounds as a waterfall, from a file of traces or from a request that is made for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from specdec.cli.server_access import InsecureToken, Tls, TlsCa, TlsCert, TlsKey, Token, TokenFrom, server_security

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from specdec.serving.channel_security import ChannelSecurity
    from specdec.v1 import generation_pb2
    from specdec.waterfall.reported import ReportedRequest
    from specdec.waterfall.request_view import RequestView

_PROMPT = "Why is the sky blue?"
_WIDTH_WITHOUT_TERMINAL = 120
_NARROWEST = 60
_LINES_AROUND = 16
"""What a waterfall has besides its rounds."""
_REFRESHES_PER_SECOND = 8


def trace(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|PROMPT]",
            help="OTLP JSON, as a collector's file exporter writes it; - reads it from standard input. "
            "With --server: the prompt to send, - reads that.",
        ),
    ] = None,
    trace_id: Annotated[
        str | None, typer.Option(metavar="HEX", help="Draw the request of this trace; its beginning is enough.")
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(metavar="HEX", help="Draw this request, where a trace has several.")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the requests of the file, and draw none.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead: one object, or with --list one each.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="OUT.html", help="Write one page that needs nothing else, instead of drawing."),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            min=_NARROWEST,
            max=1000,
            help=f"Columns; default: the terminal's, or {_WIDTH_WITHOUT_TERMINAL} without one.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[,HOST:PORT]",
            help="Send a request to this orchestrator, and draw its rounds as they come. The text is not shown.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, max=2**32 - 1, help="With --server: most new tokens.")
    ] = 64,
    num_draft_tokens: Annotated[
        str,
        typer.Option("--num-draft-tokens", "-k", metavar="N|auto", help="With --server: draft tokens a round (K)."),
    ] = "auto",
    temperature: Annotated[float | None, typer.Option(help="With --server: softmax temperature; 0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="With --server: seed of the request's noise.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="With --server: render the prompt with the chat template, or not.")
    ] = True,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token: Token = None,
    token_from: TokenFrom = None,
    insecure_token: InsecureToken = False,
) -> None:
    """Draw the rounds of a request as a waterfall: where the time of each went, and what came of its drafts."""
    if sum((list_all, as_json, html is not None)) > 1 and not (list_all and as_json):
        raise typer.BadParameter("--list, --json and --html do not go together; only --list with --json does")
    if server is None:
        requests = _read(source)
        if list_all:
            _list(requests, as_json, width)
        else:
            _show(_chosen(requests, trace_id, request_id), as_json=as_json, html=html, width=width)
        return
    if list_all or trace_id is not None or request_id is not None:
        raise typer.BadParameter("--list, --trace-id and --request-id are for a file, not for --server")
    if not server.replace(",", "").strip():
        raise typer.BadParameter("--server is empty; name an orchestrator")
    security = server_security(
        tls=tls,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token=token,
        token_from=token_from,
        insecure_token=insecure_token,
    )
    # Imported here so that `specdec --help` stays quick.
    from specdec.cli.request import build_request, parse_num_draft_tokens, read_prompt

    request = build_request(
        prompt=read_prompt(_PROMPT if source is None else source),
        system=None,
        chat=chat,
        max_new_tokens=max_new_tokens,
        num_draft_tokens=parse_num_draft_tokens(num_draft_tokens),
        acceptance_rule=None,
        stop_strings=[],
        num_completions=None,
        tenant=None,
        sampling={"temperature": temperature, "seed": seed},
    )
    view = _made(request, server, security, width, is_drawn=not as_json and html is None)
    _show(view, as_json=as_json, html=html, width=width)


def _read(source: str | None) -> list[RequestView]:
    from specdec.waterfall.span_file import SpanFileError, read_span_file
    from specdec.waterfall.traced import traced_requests

    if source is None:
        raise typer.BadParameter("name a file of traces, or an orchestrator with --server")
    try:
        file = read_span_file(sys.stdin.buffer if source == "-" else Path(source))
    except SpanFileError as error:
        _fail(f"{source}: {error}")
    if file.is_cut:
        typer.echo(f"specdec trace: {source}: its last line is incomplete, and left out", err=True)
    requests = traced_requests(file.spans)
    if not requests:
        _fail(f"{source}: no request is in it: there is no span `generate`, which comes when a request ends")
    return requests


def _chosen(requests: list[RequestView], trace_id: str | None, request_id: str | None) -> RequestView:
    """The one that is asked for; of several the last, which is said."""
    found = [
        each
        for each in requests
        if each.trace_id.startswith((trace_id or "").lower()) and each.request_id.startswith((request_id or "").lower())
    ]
    if not found:
        _fail(f"none of the {len(requests)} requests of the file is that one; --list shows them")
    if len(found) > 1:
        typer.echo(
            f"specdec trace: {len(found)} requests; this is the last. "
            "--list shows them, --trace-id and --request-id choose",
            err=True,
        )
    return found[-1]


def _list(requests: list[RequestView], as_json: bool, width: int | None) -> None:
    if as_json:
        for each in requests:
            typer.echo(json.dumps(each.summary()))
        return
    from specdec.waterfall.terminal import requests_table

    console = _console(width)
    console.print(requests_table(requests, width=console.width))


def _show(request: RequestView, *, as_json: bool, html: Path | None, width: int | None) -> None:
    if as_json:
        typer.echo(json.dumps(request.to_dict()))
        return
    if html is not None:
        from specdec.waterfall.page import page

        try:
            html.write_text(page(request), encoding="utf-8")
        except OSError as error:
            _fail(f"{html}: {(error.strerror or 'it cannot be written').lower()}")
        return
    from specdec.waterfall.terminal import waterfall

    console = _console(width)
    console.print(waterfall(request, width=console.width))


def _made(
    request: generation_pb2.GenerateRequest,
    server: str,
    security: ChannelSecurity | None,
    width: int | None,
    *,
    is_drawn: bool,
) -> RequestView:
    """Carry out the request; on a terminal the rounds are drawn meanwhile.

    After Ctrl-C it is what has come until then.
    """
    import grpc

    from specdec.cli.signals import StoppedBySignal, until_signal
    from specdec.client import ChangedModelError, IncompleteGenerationError
    from specdec.serving.security_error import SecurityError
    from specdec.waterfall.reported import ReportedRequest

    reported = ReportedRequest()
    try:
        console = _console(width)
        if is_drawn and console.is_terminal:
            from rich.live import Live

            from specdec.waterfall.terminal import waterfall

            def drawn() -> RenderableType:
                room = max(console.height - _LINES_AROUND, 1)
                return waterfall(reported.view, width=console.width, last=room)

            # At the end the whole is drawn once more, however long it is.
            with Live(console=console, get_renderable=drawn, refresh_per_second=_REFRESHES_PER_SECOND, transient=True):
                asyncio.run(until_signal(_run(request, server, security, reported)))
        else:
            asyncio.run(until_signal(_run(request, server, security, reported)))
    except StoppedBySignal as stopped:
        if not reported.view.rounds:
            raise typer.Exit(stopped.exit_status) from stopped
    except grpc.aio.AioRpcError as error:
        _fail(f"{error.code().name}: {error.details()}")
    except (ChangedModelError, IncompleteGenerationError, SecurityError, OSError) as error:
        _fail(str(error))
    return reported.view


async def _run(
    request: generation_pb2.GenerateRequest,
    server: str,
    security: ChannelSecurity | None,
    reported: ReportedRequest,
) -> None:
    from specdec.client import GenerationClient

    async with (
        GenerationClient(server, security=security) as client,
        contextlib.aclosing(client.generate(request)) as responses,
    ):
        async for response in responses:
            reported.add(response)


def _console(width: int | None) -> Console:
    from rich.console import Console

    console = Console(highlight=False, width=width)
    if width is None and not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console


def _fail(message: str) -> NoReturn:
    typer.echo(f"specdec trace: {message}", err=True)
    raise typer.Exit(1)
