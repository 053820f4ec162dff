"""`specdec generate`: one prompt to text, by a running server or by services started for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from specdec.cli.drafter_kind import DrafterKind, check_draft_model
from specdec.cli.server_access import InsecureToken, Tls, TlsCa, TlsCert, TlsKey, Token, TokenFrom, server_security
from specdec.pipelines import PipelineSetting

if TYPE_CHECKING:
    from specdec.cli.generation_output import Output
    from specdec.cli.three_services import ThreeServices
    from specdec.serving.channel_security import ChannelSecurity
    from specdec.v1 import generation_pb2

_LOCAL_SERVER = f"127.0.0.1:{os.environ.get('SPECDEC_ORCHESTRATOR_PORT', '50050')}"
_LOOK_SECONDS = 0.5
_HEALTH_BYTES = 1024
_DRAIN_SECONDS = 1.0
_UINT32_MAX = 2**32 - 1


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", min=1, max=_UINT32_MAX, help="Most new tokens.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Softmax temperature; 0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most probable tokens; 0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the smallest set of tokens with this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the most probable one.")] = None,
    typical_p: Annotated[float | None, typer.Option(help="Keep locally typical tokens with this probability.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Penalty on tokens already seen; 1 is off.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="Penalty on each earlier use of a token.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Penalty on tokens used at all.")] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(help="Never repeat so many tokens in a row; 0 is off.")
    ] = None,
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="Add this to the logit of a token id; may be repeated.")
    ] = None,
    allow_token: Annotated[
        list[int] | None, typer.Option(min=0, help="Generate only this token id and others so named.")
    ] = None,
    ban_token: Annotated[list[int] | None, typer.Option(min=0, help="Never generate this token id.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="No stop token before so many new tokens.")] = None,
    num_completions: Annotated[
        int | None, typer.Option(min=1, max=16, help="Independent completions of the prompt.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the request's noise; the same seed gives the same text.")
    ] = None,
    num_draft_tokens: Annotated[
        str,
        typer.Option(
            "--num-draft-tokens", "-k", metavar="N|auto", help="Draft tokens a round (K); 0 is plain decoding."
        ),
    ] = "auto",
    acceptance_rule: Annotated[
        Literal["coupled", "rejection", "block"] | None, typer.Option(help="How draft tokens are judged.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string; may be repeated.")] = None,
    stop_token: Annotated[list[int] | None, typer.Option(min=0, help="End the text at this token id too.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's own end of text.")] = False,
    logprobs: Annotated[
        int | None, typer.Option(help="Show log-probabilities of the tokens and of this many alternatives.")
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat/--raw", help="Render the prompt with the model's chat template, or take it as it is."),
    ] = True,
    system: Annotated[str | None, typer.Option(help="System message of the conversation.")] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            envvar="SPECDEC_TENANT", help="Whose request it is; drafts may then come from past outputs of this tenant."
        ),
    ] = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="Show what happened in each round.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, at the end.")] = False,
    server: Annotated[
        str | None,
        typer.Option(
            envvar="SPECDEC_SERVER",
            metavar="HOST:PORT[,HOST:PORT]",
            help="Orchestrator to ask, or several: if one is lost, the next goes on with the text. "
            f"Default: the one at {_LOCAL_SERVER} if it serves, else services started here.",
        ),
    ] = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token: Token = None,
    token_from: TokenFrom = None,
    insecure_token: InsecureToken = False,
    model: Annotated[str | None, typer.Option(help="Target model of services started here.")] = None,
    drafter: Annotated[DrafterKind | None, typer.Option(help="Drafter of services started here.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft model of services started here.")] = None,
    pipeline: Annotated[
        PipelineSetting | None,
        typer.Option(help="Whether services started here draft while the target verifies, and how far it goes."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device of services started here.")] = None,
) -> None:
    """Generate text from a prompt, and stream it."""
    if system is not None and not chat:
        raise typer.BadParameter("--system goes with --chat, not with --raw")
    own_services = {
        "--model": model,
        "--drafter": drafter,
        "--draft-model": draft_model,
        "--pipeline": pipeline,
        "--device": device,
    }
    given = [flag for flag, value in own_services.items() if value is not None]
    if server is not None and not server.replace(",", "").strip():
        raise typer.BadParameter("--server is empty; leave it out, or name an orchestrator")
    if server is not None and given:
        raise typer.BadParameter(f"{given[0]} is for services started here; --server has its own")
    check_draft_model(drafter, draft_model)
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
    from specdec.cli.generation_output import CompletionsOutput, JsonOutput, TextOutput
    from specdec.cli.request import build_request, parse_logit_bias, parse_num_draft_tokens, read_prompt
    from specdec.cli.three_services import FOR_THIS_MACHINE_ALONE, ThreeServices

    request = build_request(
        prompt=read_prompt(prompt),
        system=system,
        chat=chat,
        max_new_tokens=max_new_tokens,
        num_draft_tokens=parse_num_draft_tokens(num_draft_tokens),
        acceptance_rule=acceptance_rule,
        stop_strings=stop or [],
        num_completions=num_completions,
        tenant=tenant,
        sampling={
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "typical_p": typical_p,
            "repetition_penalty": repetition_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "logit_bias": parse_logit_bias(logit_bias),
            "allowed_token_ids": tuple(allow_token) if allow_token else None,
            "banned_token_ids": tuple(ban_token) if ban_token else None,
            "stop_token_ids": tuple(stop_token) if stop_token else None,
            "min_new_tokens": min_new_tokens,
            "seed": seed,
            "ignore_eos": ignore_eos or None,
            "num_logprobs": logprobs,
        },
    )
    services = ThreeServices(
        model=model,
        drafter=drafter,
        draft_model=draft_model,
        pipeline=pipeline,
        device=device,
        drain_seconds=_DRAIN_SECONDS,
        environment=FOR_THIS_MACHINE_ALONE,
    )
    show_logprobs = logprobs is not None
    output: Output
    if as_json:
        output = JsonOutput(sys.stdout, num_completions or 1)
    elif num_completions is None or num_completions == 1:
        output = TextOutput(sys.stdout, rounds=rounds, logprobs=show_logprobs)
    else:
        output = CompletionsOutput(sys.stdout, num_completions, rounds=rounds, logprobs=show_logprobs)
    _run(request, output, server, security, services, look_first=not given)


def _run(
    request: generation_pb2.GenerateRequest,
    output: Output,
    server: str | None,
    security: ChannelSecurity | None,
    services: ThreeServices,
    *,
    look_first: bool,
) -> None:
    """Carry out the request and show it; the exit status is 0, 1 for a failure, or 128 + the signal that stopped it."""
    import grpc

    from specdec.cli.service_group import ServiceFailedError
    from specdec.cli.signals import StoppedBySignal, until_signal
    from specdec.client import ChangedModelError, IncompleteGenerationError
    from specdec.serving.security_error import SecurityError

    try:
        asyncio.run(until_signal(_generate(request, output, server, security, services, look_first=look_first)))
    except StoppedBySignal as stopped:
        output.close()
        raise typer.Exit(stopped.exit_status) from stopped
    except grpc.aio.AioRpcError as error:
        output.abort()
        _fail(f"{error.code().name}: {error.details()}")
    except (ChangedModelError, IncompleteGenerationError, SecurityError, ServiceFailedError, OSError) as error:
        output.abort()
        _fail(str(error))
    output.close()


async def _generate(
    request: generation_pb2.GenerateRequest,
    output: Output,
    server: str | None,
    security: ChannelSecurity | None,
    services: ThreeServices,
    *,
    look_first: bool,
) -> None:
    from specdec.client import GenerationClient

    async with contextlib.AsyncExitStack() as stack:
        if server is None and look_first and await _serves(_LOCAL_SERVER, security):
            server = _LOCAL_SERVER
        if server is None:
            notice = f"no server given, and none at {_LOCAL_SERVER}" if look_first else "own services asked for"
            server, security = await stack.enter_async_context(_started_here(services, notice)), None
        client = await stack.enter_async_context(GenerationClient(server, security=security))
        responses = await stack.enter_async_context(contextlib.aclosing(client.generate(request)))
        async for response in responses:
            output.add(response)


async def _serves(address: str, security: ChannelSecurity | None) -> bool:
    from specdec.cli.service_group import is_serving
    from specdec.serving.channel import open_channel

    async with open_channel(address, max_message_bytes=_HEALTH_BYTES, security=security) as channel:
        return await is_serving(channel, timeout_seconds=_LOOK_SECONDS)


@contextlib.asynccontextmanager
async def _started_here(services: ThreeServices, notice: str) -> AsyncIterator[str]:
    """Services of our own for this one request; yields the address of their orchestrator."""
    from rich.console import Console
    from rich.text import Text

    from specdec.cli.service_group import ServiceGroup
    from specdec.settings import DEFAULT_DRAFTER

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    drafter = services.drafter_flag or os.environ.get("SPECDEC_DRAFT_DRAFTER", DEFAULT_DRAFTER)
    console.print(f"{notice}: starting services here, with the drafter {drafter!r}")
    with console.status("starting") as status:
        async with ServiceGroup(
            services.specs(),
            on_line=lambda name, line: status.update(
                Text(f"starting: {name}: {line}", no_wrap=True, overflow="ellipsis")
            ),
            drain_seconds=services.drain_seconds,
        ) as group:
            status.stop()
            yield group.address


def _fail(message: str) -> NoReturn:
    typer.echo(f"specdec generate: {message}", err=True)
    raise typer.Exit(1)
