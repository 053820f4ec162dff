"""Where a request's output ends. Text, ids, log-probabilities and usage all follow from one cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.detokenizer import IncrementalDetokenizer
from orchestrator.stops import StopStringScanner
from specdec.errors import InvalidArgumentError
from specdec.v1 import generation_pb2, sampling_pb2


@dataclass(frozen=True, slots=True)
class Finish:
    """Why an output ended."""

    reason: generation_pb2.FinishReason.ValueType
    stop_string: str = ""
    stop_token_id: int | None = None


class OutputPiece(NamedTuple):
    """What one round adds to the output."""

    text: str
    """Text that became certain; it may lag behind the tokens."""
    text_lengths: list[int]
    """For each token, how many characters of `text` became certain with it."""
    token_ids: list[int]
    """The round's tokens up to the cut."""
    logprobs: list[sampling_pb2.TokenLogprobs]
    """One entry for each token, if there are any."""
    finish: Finish | None
    """Set in the last piece."""


class OutputAssembler:
    """Walks committed tokens in order and cuts the output at the first of: a stop token, a stop string, the limit.

    A stop token is counted and listed, and has no text. The token that completes a stop string is counted and listed
    too; the text ends before the stop string. A token that both stops and reaches the limit stops.

    Args:
        detokenizer: of this request.
        stop_strings: none of them empty.
        stop_token_ids: tokens that end the output.
        max_new_tokens: most tokens; the room in the model's context is part of it.
    """

    def __init__(
        self,
        detokenizer: IncrementalDetokenizer,
        stop_strings: Sequence[str],
        stop_token_ids: Sequence[int],
        max_new_tokens: int,
    ) -> None:
        self._detokenizer = detokenizer
        self._scanner = StopStringScanner(stop_strings)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._max_new_tokens = max_new_tokens
        self.num_tokens = 0
        """Tokens in the output so far."""

    def add(self, token_ids: Sequence[int], logprobs: Sequence[sampling_pb2.TokenLogprobs] = ()) -> OutputPiece:
        """Take the tokens of a round; nothing may follow once a piece has a `finish`.

        Args:
            token_ids: at least one.
            logprobs: one for each, or none.
        """
        texts: list[str] = []
        finish: Finish | None = None
        for token_id in token_ids:
            self.num_tokens += 1
            text, finish = self._take(token_id)
            texts.append(text)
            if finish is not None:
                break
        kept = len(texts)
        return OutputPiece(
            "".join(texts), [len(text) for text in texts], list(token_ids[:kept]), list(logprobs[:kept]), finish
        )

    def resume(self, token_ids: Sequence[int]) -> Finish | None:
        """Take tokens that the client has, with the text that became certain with them; before any others.

        Args:
            token_ids: any number.

        Returns:
            Why the output ends with the last of them; None if it goes on.

        Raises:
            InvalidArgumentError: it ends before that.
        """
        if not token_ids:
            return None
        piece = self.add(token_ids)
        if len(piece.token_ids) < len(token_ids):
            raise InvalidArgumentError(
                f"the output ends with {len(piece.token_ids)} of the {len(token_ids)} ids in resume_token_ids"
            )
        return piece.finish

    def _take(self, token_id: int) -> tuple[str, Finish | None]:
        """The text that a token makes certain, and the end if it is the last one."""
        if token_id in self._stop_token_ids:
            return self._end("", Finish(generation_pb2.FINISH_REASON_STOP, stop_token_id=token_id))
        text, stop_string = self._scanner.push(self._detokenizer.push(token_id))
        if stop_string is not None:
            return text, Finish(generation_pb2.FINISH_REASON_STOP, stop_string=stop_string)
        if self.num_tokens >= self._max_new_tokens:
            return self._end(text, Finish(generation_pb2.FINISH_REASON_LENGTH))
        return text, None

    def _end(self, text: str, finish: Finish) -> tuple[str, Finish]:
        """Release what was held back. A broken last character may still complete a stop string."""
        rest, stop_string = self._scanner.push(self._detokenizer.flush())
        if stop_string is not None:
            return text + rest, Finish(generation_pb2.FINISH_REASON_STOP, stop_string=stop_string)
        return text + rest + self._scanner.flush(), finish
