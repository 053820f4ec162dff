"""What a request takes of the tokens a minute that its client may have."""

from __future__ import annotations

from specdec.v1 import generation_pb2

_BYTES_PER_TOKEN = 4
"""Of text in a usual language. A guess that is wrong is made good when the number of prompt tokens is known."""


class TokenUse:
    """Prompt and generated tokens of one call; the prompt counts once, whatever the number of completions.

    Args:
        request: of one of the methods of the generation service; None of other calls, which take nothing.
        default_max_new_tokens: of a request that does not say how many.
    """

    def __init__(self, request: object, default_max_new_tokens: int) -> None:
        self.expected_tokens = 0
        self.used_tokens = 0
        self._is_unary = isinstance(request, generation_pb2.GenerateUnaryRequest)
        asked = request.request if isinstance(request, generation_pb2.GenerateUnaryRequest) else request
        if isinstance(asked, generation_pb2.GenerateRequest):
            self.expected_tokens = _num_prompt_tokens(asked) + _num_new_tokens(asked, default_max_new_tokens)

    def notice(self, response: object) -> None:
        """Count what a response brings."""
        if isinstance(response, generation_pb2.GenerateUnaryResponse):
            self._is_unary = False
            self.used_tokens = response.started.num_prompt_tokens
            self.used_tokens += sum(len(completion.token_ids) for completion in response.completions)
        elif isinstance(response, generation_pb2.GenerateResponse):
            self.used_tokens += response.started.num_prompt_tokens + len(response.delta.token_ids)

    def abandon(self) -> None:
        """Of a unary call nobody here knows how far it got, so it is taken to have got everything."""
        if self._is_unary:
            self.used_tokens = self.expected_tokens


def _num_prompt_tokens(request: generation_pb2.GenerateRequest) -> int:
    if request.HasField("token_ids"):
        return len(request.token_ids.ids)
    texts = [request.text] if request.HasField("text") else [message.content for message in request.chat.messages]
    return sum(-(-len(text.encode()) // _BYTES_PER_TOKEN) for text in texts)


def _num_new_tokens(request: generation_pb2.GenerateRequest, default: int) -> int:
    max_new_tokens = request.max_new_tokens if request.HasField("max_new_tokens") else default
    return max_new_tokens * (request.num_completions if request.HasField("num_completions") else 1)
