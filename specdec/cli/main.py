"""The command `specdec`."""

import os
import sys
from typing import NoReturn

import typer

from specdec.cli.generate import generate
from specdec.cli.models import app as models_app
from specdec.cli.plan import plan
from specdec.cli.serve import serve
from specdec.cli.token import app as token_app
from specdec.cli.top import top
from specdec.cli.trace import trace

_MODULES = {
    "target": ("target_service", "Run the target service, which verifies draft tokens."),
    "draft": ("draft_service", "Run the draft service, which proposes tokens."),
    "orchestrator": ("orchestrator", "Run the orchestrator, which turns prompts into text."),
    "train-draft": ("draft_service.training", "Train a draft model for a target, on text that the target writes."),
}

app = typer.Typer(
    name="specdec",
    help="Speculative decoding of large language models, split over gRPC.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(serve)
app.command()(plan)
app.command()(trace)
app.command()(top)
app.add_typer(models_app, name="models")
app.add_typer(token_app, name="token")


def _add_module(name: str, module: str, description: str) -> None:
    # Flags, --help and environment are those of the module's own settings: nothing is read here.
    @app.command(
        name,
        help=description,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
        add_help_option=False,
    )
    def run(context: typer.Context) -> NoReturn:
        os.execv(sys.executable, [sys.executable, "-m", module, *context.args])  # noqa: S606


for _name, (_module, _description) in _MODULES.items():
    _add_module(_name, _module, _description)


if __name__ == "__main__":
    app()
