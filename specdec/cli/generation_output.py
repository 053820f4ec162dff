"""What `specdec generate` writes to standard output: the text as it comes, or one JSON object at the end."""

from __future__ import annotations

import json
from typing import Protocol, TextIO

from rich.console import Console
from rich.table import Table

from specdec.cli.rounds_view import RoundText, legend, rounds_table, summary
from specdec.client import GenerationResult
from specdec.v1 import generation_pb2, sampling_pb2

_WIDTH_WITHOUT_TERMINAL = 200


class Output(Protocol):
    """Takes the responses as they come."""

    def add(self, response: generation_pb2.GenerateResponse) -> None:
        """The next response."""

    def close(self) -> None:
        """The generation ended or was interrupted: show what there is."""

    def abort(self) -> None:
        """The generation failed; the error is shown elsewhere."""


class JsonOutput:
    """One object on one line. After an interruption `finish_reason`, `usage` and `stats` are null.

    Of several completions it is the first; `completions` then lists all of them, each an object of the same kind.
    """

    def __init__(self, stream: TextIO, num_completions: int = 1) -> None:
        self._stream = stream
        self._results = [GenerationResult(completion=index) for index in range(num_completions)]

    def add(self, response: generation_pb2.GenerateResponse) -> None:
        for result in self._results:
            result.add(response)

    def close(self) -> None:
        values = [result.to_dict() for result in self._results]
        first = values[0] if len(values) == 1 else {**values[0], "completions": values}
        print(json.dumps(first, ensure_ascii=False), file=self._stream, flush=True)

    def abort(self) -> None:
        """Nothing: half an answer is not to be taken for one."""


class TextOutput:
    """The text, then the tables that were asked for; coloured by round on a terminal."""

    def __init__(self, stream: TextIO, *, rounds: bool, logprobs: bool) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = _WIDTH_WITHOUT_TERMINAL
        self._stream = stream
        self._show_rounds = rounds
        self._show_logprobs = logprobs
        self._rounds: list[RoundText] = []
        self._logprobs: list[sampling_pb2.TokenLogprobs] = []
        self._finished: generation_pb2.Finished | None = None
        self._last_text = ""

    def add(self, response: generation_pb2.GenerateResponse) -> None:
        if response.HasField("delta"):
            entry = RoundText.of(response.delta)
            self._rounds.append(entry)
            self._logprobs.extend(response.delta.logprobs)
            self._write(entry)
        elif response.HasField("finished"):
            self._finished = response.finished

    def close(self) -> None:
        if self._rounds and not self._last_text.endswith("\n"):
            self._stream.write("\n")
        if self._show_rounds and self._rounds:
            if self._console.is_terminal:
                self._console.print(legend())
            self._console.print(rounds_table(self._rounds))
            if self._finished is not None:
                self._console.print(summary(self._finished.stats))
        if self._show_logprobs and self._logprobs:
            self._console.print(_logprobs_table(self._logprobs))
        self._stream.flush()

    def abort(self) -> None:
        self.close()

    def _write(self, entry: RoundText) -> None:
        if self._show_rounds and self._console.is_terminal:
            self._console.print(entry.coloured(), end="")
        else:
            self._stream.write(entry.text)
        self._stream.flush()
        self._last_text = entry.text or self._last_text


class CompletionsOutput:
    """Several completions, one after the other at the end, each as `TextOutput` shows it."""

    def __init__(self, stream: TextIO, num_completions: int, *, rounds: bool, logprobs: bool) -> None:
        self._stream = stream
        self._show = {"rounds": rounds, "logprobs": logprobs}
        self._responses: list[list[generation_pb2.GenerateResponse]] = [[] for _ in range(num_completions)]

    def add(self, response: generation_pb2.GenerateResponse) -> None:
        if response.HasField("delta"):
            self._responses[response.delta.completion].append(response)
        elif response.HasField("finished"):
            self._responses[response.finished.completion].append(response)

    def close(self) -> None:
        for index, responses in enumerate(self._responses):
            self._stream.write(f"── completion {index} ──\n")
            output = TextOutput(self._stream, **self._show)
            for response in responses:
                output.add(response)
            output.close()

    def abort(self) -> None:
        self.close()


def _logprobs_table(logprobs: list[sampling_pb2.TokenLogprobs]) -> Table:
    table = Table("token id", "logprob", "most probable ids", box=None)
    for entry in logprobs:
        top = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
        table.add_row(
            str(entry.token_id), f"{entry.logprob:.4f}", "  ".join(f"{token}: {value:.4f}" for token, value in top)
        )
    return table
