"""What a client has received of one request, over all the calls that it took."""

from __future__ import annotations

from specdec.v1 import generation_pb2, model_pb2


class ChangedModelError(Exception):
    """The other orchestrator would go on with another model, or with another reading of the prompt."""


class Received:
    """Lets one stream of responses come out of several calls, and says what to ask for in the next one.

    Args:
        request: as the caller made it.
    """

    def __init__(self, request: generation_pb2.GenerateRequest) -> None:
        self._request = request
        self._started: generation_pb2.Started | None = None
        self._token_ids = [list(entry.ids) for entry in request.resume_token_ids]
        self._token_ids += [[] for _ in range(num_completions(request) - len(self._token_ids))]
        self._num_rounds = [0] * len(self._token_ids)
        self._round_offsets = [0] * len(self._token_ids)
        self._unfinished = set(range(num_completions(request)))

    @property
    def is_complete(self) -> bool:
        """Whether each completion has its final message."""
        return not self._unfinished

    @property
    def can_go_on(self) -> bool:
        """Whether another call gives the rest of the same text: by the coupled rule, and at temperature 0."""
        if self._started is None or not any(self._token_ids):
            return True
        sampling = self._request.sampling
        is_greedy = sampling.HasField("temperature") and sampling.temperature == 0
        return is_greedy or self._started.acceptance_rule == model_pb2.ACCEPTANCE_RULE_COUPLED

    def next_request(self) -> generation_pb2.GenerateRequest:
        """The request for what is missing."""
        self._round_offsets = list(self._num_rounds)
        if self._started is None:
            return self._request
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        request.sampling.seed = self._started.seed
        request.acceptance_rule = self._started.acceptance_rule
        del request.resume_token_ids[:]
        if any(self._token_ids):
            request.resume_token_ids.extend(generation_pb2.ReceivedTokens(ids=ids) for ids in self._token_ids)
        return request

    def add(self, response: generation_pb2.GenerateResponse) -> bool:
        """Take in a response; its round counts on from those before. False: the caller has had it already.

        Raises:
            ChangedModelError: what follows would not continue what was received.
        """
        event = response.WhichOneof("event")
        if event == "started":
            return self._start(response.started)
        if event == "delta":
            delta = response.delta
            self._token_ids[delta.completion].extend(delta.token_ids)
            delta.round.round += self._round_offsets[delta.completion]
            self._num_rounds[delta.completion] = delta.round.round + 1
            return True
        if event == "finished":
            is_new = response.finished.completion in self._unfinished
            self._unfinished.discard(response.finished.completion)
            return is_new
        return True

    def _start(self, started: generation_pb2.Started) -> bool:
        before = self._started
        if before is None:
            self._started = started
            return True
        if (before.model_id, before.num_prompt_tokens) != (started.model_id, started.num_prompt_tokens):
            raise ChangedModelError(
                f"the request began with {before.model_id} and {before.num_prompt_tokens} prompt tokens; the next"
                f" orchestrator has {started.model_id} and {started.num_prompt_tokens}"
            )
        return False


def num_completions(request: generation_pb2.GenerateRequest) -> int:
    """How many completions a request asks for."""
    return request.num_completions if request.HasField("num_completions") else 1
