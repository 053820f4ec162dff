"""`specdec serve`: the three services on this machine, in one terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specdec.cli.drafter_kind import DrafterKind, check_draft_model
from specdec.pipelines import PipelineSetting

if TYPE_CHECKING:
    from rich.console import Console

    from specdec.cli.three_services import ThreeServices

_COLOURS = {"target": "cyan", "draft": "magenta", "orchestrator": "green", "specdec": "bold"}
_WIDTH = max(map(len, _COLOURS))


def serve(
    model: Annotated[
        str | None, typer.Option(help="Target model: embedded name, Hugging Face id, directory or GGUF file.")
    ] = None,
    drafter: Annotated[
        DrafterKind | None,
        typer.Option(help="Where draft tokens come from: a draft model, lookup (two kinds), both, or nowhere."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="Draft model, named like --model; implies --drafter model.")
    ] = None,
    num_draft_tokens: Annotated[
        str | None,
        typer.Option(
            "--num-draft-tokens",
            "-k",
            metavar="N|auto",
            help="Draft tokens a round (K) when a request does not say; auto chooses round by round.",
        ),
    ] = None,
    pipeline: Annotated[
        PipelineSetting | None,
        typer.Option(
            help="Draft while the target verifies (ahead), and send it drafts before its verdict (candidates)."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device of both models: cpu, cuda, cuda:N or auto.")] = None,
    draft_device: Annotated[str | None, typer.Option(help="Device of the draft model, if it is another one.")] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int4"] | None,
        typer.Option(help="Element type of the weights; with int4 those of a draft model are bfloat16."),
    ] = None,
    num_threads: Annotated[
        int | None,
        typer.Option(
            min=0, help="Threads of a forward pass on CPU; 0: PyTorch decides. Without it the models share the CPUs."
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(envvar="SPECDEC_ORCHESTRATOR_HOST", help="Address where the orchestrator listens."),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, envvar="SPECDEC_ORCHESTRATOR_PORT", help="Port of the orchestrator; 0 takes a free one."
        ),
    ] = 50050,
    target_port: Annotated[
        int,
        typer.Option(min=0, max=65535, envvar="SPECDEC_TARGET_PORT", help="Port of the target; 0 takes a free one."),
    ] = 0,
    draft_port: Annotated[
        int,
        typer.Option(min=0, max=65535, envvar="SPECDEC_DRAFT_PORT", help="Port of the draft; 0 takes a free one."),
    ] = 0,
    tls_cert: Annotated[
        Path | None,
        typer.Option(envvar="SPECDEC_ORCHESTRATOR_TLS_CERT", help="PEM file with the orchestrator's certificate."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(envvar="SPECDEC_ORCHESTRATOR_TLS_KEY", help="PEM file with the key of --tls-cert.")
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="SPECDEC_ORCHESTRATOR_CLIENT_CA",
            help="PEM file with the authorities of clients, who must then show a certificate.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="SPECDEC_ORCHESTRATOR_TOKEN_FILE",
            help="File of the tokens that clients may show, a line each, as `specdec token new` prints it.",
        ),
    ] = None,
    insecure_bind: Annotated[
        bool,
        typer.Option(
            "--insecure-bind",
            envvar="SPECDEC_ORCHESTRATOR_INSECURE_BIND",
            help="Listen where other machines can call although TLS or the check of who calls is missing.",
        ),
    ] = False,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics", help="Serve the metrics of each service to Prometheus, and say how `specdec top` shows them."
        ),
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="Least severe line to log.")
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0, envvar="SPECDEC_ORCHESTRATOR_DRAIN_SECONDS", help="Seconds that running requests have at the end."
        ),
    ] = 20.0,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait until all are ready; the first start may download a model.")
    ] = 900.0,
) -> None:
    """Run target, draft and orchestrator here, until Ctrl-C.

    Every further setting of a service is taken from the environment: SPECDEC_TARGET_*, SPECDEC_DRAFT_* and
    SPECDEC_ORCHESTRATOR_*, as `specdec target --help` and its sisters list them.
    """
    check_draft_model(drafter, draft_model)
    # Imported here so that `specdec --help` stays quick.
    from rich.console import Console

    from specdec.cli.request import parse_num_draft_tokens
    from specdec.cli.service_group import ServiceFailedError
    from specdec.cli.signals import StoppedBySignal, until_signal
    from specdec.cli.three_services import ThreeServices

    if num_draft_tokens is not None:
        parse_num_draft_tokens(num_draft_tokens)
    services = ThreeServices(
        model=model,
        drafter=drafter,
        draft_model=draft_model,
        num_draft_tokens=num_draft_tokens,
        pipeline=pipeline,
        device=device,
        draft_device=draft_device,
        dtype=dtype,
        num_threads=num_threads,
        log_level=log_level,
        host=host,
        port=port,
        target_port=target_port,
        draft_port=draft_port,
        drain_seconds=drain_seconds,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        token_file=token_file,
        insecure_bind=insecure_bind,
        has_metrics=metrics,
    )
    console = Console(stderr=True)
    try:
        asyncio.run(until_signal(_serve(services, console, start_timeout)))
    except StoppedBySignal:
        _print_line(console, "specdec", "all services have ended")
    except (ServiceFailedError, OSError) as failure:
        _print_line(console, "specdec", str(failure))
        raise typer.Exit(1) from failure


async def _serve(services: ThreeServices, console: Console, start_timeout_seconds: float) -> None:
    from specdec.cli.service_group import ServiceGroup

    specs = services.specs()
    waiting = [spec.name for spec in specs]
    with console.status(_waiting_for(waiting)) as status:

        def on_serving(name: str, seconds: float) -> None:
            waiting.remove(name)
            status.update(_waiting_for(waiting)) if waiting else status.stop()
            _print_line(console, "specdec", f"{name} is ready after {seconds:.1f} s")

        async with ServiceGroup(
            specs,
            on_line=lambda name, line: _print_line(console, name, line),
            on_serving=on_serving,
            start_timeout_seconds=start_timeout_seconds,
            drain_seconds=services.drain_seconds,
        ) as group:
            if metrics := ",".join(spec.metrics_address for spec in specs if spec.metrics_address):
                _print_line(console, "specdec", f"to watch them: specdec top --metrics {metrics}")
            _print_line(console, "specdec", "ready; Ctrl-C ends all")
            typer.echo(group.address)
            try:
                await group.first_failure()
            except asyncio.CancelledError:
                _print_line(console, "specdec", "running requests may finish; Ctrl-C again ends them at once")
                raise


def _waiting_for(names: list[str]) -> str:
    return f"waiting for {', '.join(names)}"


def _print_line(console: Console, name: str, line: str) -> None:
    from rich.text import Text

    prefix = Text.assemble((f"{name:<{_WIDTH}} │ ", _COLOURS[name]))
    console.print(prefix + Text(line), soft_wrap=True)
