"""`specdec models`: what can be served without a model hub, and what is in the cache."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from specdec.models.cache import megabytes
from specdec.models.catalog import CATALOG
from specdec.models.errors import ModelError
from specdec.models.progress import default_report, directory_bytes
from specdec.models.source import find_model, provide_model

app = typer.Typer(help="Models: list, fetch, find.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Embedded model, .gguf file, directory, or Hugging Face id.")]


@app.command("list")
def list_models() -> None:
    """List the embedded models; say which are in the cache, and how large they are there."""
    for model in CATALOG.values():
        directory = find_model(model.name)
        if directory is None:
            state = f"not fetched: {megabytes(model.wheel_bytes)} to fetch, {megabytes(model.converted_bytes)} then"
        else:
            state = f"in the cache: {megabytes(directory_bytes(directory))}"
        typer.echo(f"{model.name}  ({state})  {model.description}")


@app.command()
def pull(name: Name) -> None:
    """Fetch and convert a model now, so that a service has it at once; print where it lies."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with _telling_errors():
        typer.echo(provide_model(name, default_report()))


@app.command()
def where(name: Name) -> None:
    """Print the directory of a model; exit with status 1 if it is still to be fetched or converted."""
    with _telling_errors():
        directory = find_model(name)
        if directory is None:
            raise ModelError(f"{name} is not in the cache; fetch it with `specdec models pull {name}`")
        typer.echo(directory)


@contextmanager
def _telling_errors() -> Iterator[None]:
    """One sentence and status 1 instead of a traceback."""
    try:
        yield
    except ModelError as error:
        typer.echo(f"specdec: {error}", err=True)
        raise typer.Exit(1) from error
    except ModuleNotFoundError as error:
        typer.echo(f"specdec: {error.name} is not installed; run `pip install 'specdec[models]'`", err=True)
        raise typer.Exit(1) from error
