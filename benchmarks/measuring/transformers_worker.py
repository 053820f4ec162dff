"""transformers' own `generate` in a process of its own, asked over standard input and output.

    python -m benchmarks.measuring.transformers_worker --model NAME --num-threads N --device D --dtype T

Each line of input is a JSON object with `command`: "tokenize" (text) or "generate" (token_ids, max_new_tokens,
temperature, seed, assistance: "model", "lookup", or null for plain decoding; num_assistant_tokens). Each line of output
is the answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from specdec.models.loading import choose_device, choose_dtype
from specdec.models.progress import default_report
from specdec.models.source import provide_model


class ArrivalTimes(StoppingCriteria):
    """Notes how many tokens there are at each step, and when; never stops anything."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.steps: list[tuple[int, float]] = []
        self._num_prompt_tokens = num_prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        # Reading a token waits for the device, which may be ahead of Python.
        int(input_ids[0, -1])
        self.steps.append((input_ids.shape[1] - self._num_prompt_tokens, time.perf_counter()))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class Worker:
    """A target model, and a draft model if there is one, as transformers runs them by default."""

    def __init__(self, model: str, draft_model: str | None, device: str, dtype: str) -> None:
        self._device = choose_device(device)
        self._dtype = choose_dtype(dtype, self._device)
        self._tokenizer = AutoTokenizer.from_pretrained(provide_model(model, default_report()))
        self._model = self._load(model)
        self._assistant = self._load_assistant(draft_model, model) if draft_model else None
        stop = self._model.generation_config.eos_token_id
        ends = {self._tokenizer.eos_token_id, *(stop if isinstance(stop, list) else [stop])}
        self._stop_token_ids = sorted(token_id for token_id in ends if token_id is not None)

    def _load(self, name: str) -> Any:
        directory = provide_model(name, default_report())
        model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=self._dtype, local_files_only=True)
        return model.to(self._device).eval()

    def _load_assistant(self, name: str, target: str) -> Any:
        # Imported here: it takes a second.
        from draft_service.trained_draft import is_trained_draft, load_trained_draft

        if not is_trained_draft(name):
            return self._load(name)
        # Named, so that weights are not packed: transformers runs the layers with its own attention.
        dtype = str(self._dtype).removeprefix("torch.")
        draft: Any = load_trained_draft(name, target=target, dtype=dtype, device=str(self._device)).model
        # Made for the services' caches; here it gets those of transformers.
        draft.set_attn_implementation("sdpa")
        draft.config.use_cache = True
        return draft

    def tokenize(self, text: str) -> list[int]:
        """The prompt of a conversation that begins with `text`."""
        messages = [{"role": "user", "content": text}]
        rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        token_ids: list[int] = self._tokenizer(rendered, add_special_tokens=False)["input_ids"]
        return token_ids

    def generate(
        self,
        token_ids: list[int],
        max_new_tokens: int,
        temperature: float,
        seed: int,
        assistance: str | None,
        num_assistant_tokens: int,
    ) -> dict[str, object]:
        """The fields of a `Measurement`."""
        torch.manual_seed(seed)
        arguments: dict[str, object] = {}
        if assistance == "lookup":
            arguments["prompt_lookup_num_tokens"] = num_assistant_tokens
        elif assistance == "model" and self._assistant is not None:
            arguments["assistant_model"] = self._assistant
            self._assistant.generation_config.num_assistant_tokens = num_assistant_tokens
            self._assistant.generation_config.num_assistant_tokens_schedule = "constant"
        sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        self._model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=max_new_tokens,
            do_sample=temperature > 0,
            eos_token_id=self._stop_token_ids,
            pad_token_id=self._stop_token_ids[0] if self._stop_token_ids else 0,
            **sampling,
        )
        prompt = torch.tensor([token_ids], device=self._device)
        arrivals = ArrivalTimes(len(token_ids))
        began = time.perf_counter()
        output = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            stopping_criteria=StoppingCriteriaList([arrivals]),
            **arguments,
        )
        generated = self._until_stop(output[0, len(token_ids) :].tolist())
        (num_first, first), (_, last) = arrivals.steps[0], arrivals.steps[-1]
        return {
            "token_ids": generated,
            "num_first_tokens": min(num_first, len(generated)),
            "first_seconds": first - began,
            "decode_seconds": last - first,
        }

    def _until_stop(self, token_ids: list[int]) -> list[int]:
        """Without what assisted generation may leave after a stop token."""
        for index, token_id in enumerate(token_ids):
            if token_id in self._stop_token_ids:
                return token_ids[: index + 1]
        return token_ids


def main() -> None:
    """Answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--num-threads", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtype", required=True)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(options.num_threads)
    worker = Worker(options.model, options.draft_model, options.device, options.dtype)
    _answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        command = request.pop("command")
        _answer({"token_ids": worker.tokenize(**request)} if command == "tokenize" else worker.generate(**request))


def _answer(value: dict[str, object]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
