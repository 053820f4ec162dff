"""Sampling parameters: bounds, defaults, and the way over the wire."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from specdec.errors import InvalidArgumentError
from specdec.sampling.params import (
    MAX_LISTED_TOKEN_IDS,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_NUM_LOGPROBS,
    SamplingParams,
)
from specdec.v1 import sampling_pb2


class Bounds(NamedTuple):
    low: float
    high: float
    low_is_outside: bool = False
    zero_is_inside: bool = False

    def allow(self, value: float) -> bool:
        if self.zero_is_inside and value == 0:
            return True
        return (self.low < value if self.low_is_outside else self.low <= value) and value <= self.high


FLOATS = {
    "temperature": Bounds(1e-5, 100.0, zero_is_inside=True),
    "top_p": Bounds(0.0, 1.0, low_is_outside=True),
    "min_p": Bounds(0.0, 1.0),
    "typical_p": Bounds(0.0, 1.0, low_is_outside=True),
    "repetition_penalty": Bounds(0.01, 100.0),
    "frequency_penalty": Bounds(-2.0, 2.0),
    "presence_penalty": Bounds(-2.0, 2.0),
}
INTEGERS = {
    "top_k": Bounds(0, 2**31 - 1),
    "no_repeat_ngram_size": Bounds(0, 1024),
    "min_new_tokens": Bounds(0, 2**31 - 1),
    "seed": Bounds(0, 2**64 - 1),
    "num_logprobs": Bounds(0, MAX_NUM_LOGPROBS),
}
LISTS = ("allowed_token_ids", "banned_token_ids", "stop_token_ids")


def make(**values: object) -> SamplingParams:
    return SamplingParams(**values)  # type: ignore[arg-type]


def inside(bounds: Bounds) -> st.SearchStrategy[float]:
    return st.floats(bounds.low, bounds.high, exclude_min=bounds.low_is_outside)


def all_params() -> st.SearchStrategy[SamplingParams]:
    integers = {name: st.integers(int(bounds.low), int(bounds.high)) for name, bounds in INTEGERS.items()}
    integers["num_logprobs"] = st.none() | integers["num_logprobs"]  # type: ignore[assignment]
    token_ids = st.integers(0, 2**32 - 1)
    return st.builds(
        SamplingParams,
        **{name: inside(bounds) for name, bounds in FLOATS.items()},
        **integers,
        **{name: st.lists(token_ids, max_size=4).map(tuple) for name in LISTS},
        logit_bias=st.dictionaries(token_ids, st.floats(-100, 100), max_size=4),
        ignore_eos=st.booleans(),
    )


@given(all_params())
def test_over_the_wire_and_back(params: SamplingParams) -> None:
    message = sampling_pb2.SamplingParams.FromString(params.to_proto().SerializeToString())
    assert SamplingParams.from_proto(message) == params


def test_every_field_of_the_message_is_a_field_here() -> None:
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    assert names == set(sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
    assert names == {*FLOATS, *INTEGERS, *LISTS, "logit_bias", "ignore_eos"}


def test_defaults_leave_the_models_own_law_alone() -> None:
    params = SamplingParams()
    assert params == SamplingParams.from_proto(sampling_pb2.SamplingParams(), defaults=SamplingParams())
    assert (params.temperature, params.top_p, params.typical_p, params.repetition_penalty) == (1.0, 1.0, 1.0, 1.0)
    assert (params.top_k, params.min_p, params.frequency_penalty, params.presence_penalty) == (0, 0.0, 0.0, 0.0)
    assert params.num_logprobs is None
    assert not params.is_greedy


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_a_field_that_is_set_is_not_taken_for_unset(name: str) -> None:
    # A zero that was sent is a zero, never "not sent".
    zero_or_one = 0 if INTEGERS.get(name, FLOATS.get(name, Bounds(0, 0))).allow(0) else 1
    message = sampling_pb2.SamplingParams(**{name: zero_or_one})  # type: ignore[arg-type]
    defaults = SamplingParams(
        temperature=0.7,
        top_k=5,
        top_p=0.5,
        min_p=0.25,
        typical_p=0.5,
        repetition_penalty=2.0,
        frequency_penalty=1.5,
        presence_penalty=1.5,
        no_repeat_ngram_size=3,
        min_new_tokens=9,
        seed=8,
        num_logprobs=4,
    )
    merged = SamplingParams.from_proto(message, defaults)
    assert getattr(merged, name) == zero_or_one
    assert dataclasses.replace(merged, **{name: getattr(defaults, name)}) == defaults


@pytest.mark.parametrize("name", [*FLOATS, *(set(INTEGERS) - {"num_logprobs"}), "ignore_eos"])
def test_services_refuse_a_field_that_is_not_set(name: str) -> None:
    message = SamplingParams().to_proto()
    message.ClearField(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=name):
        SamplingParams.from_proto(message)


def test_without_num_logprobs_none_are_wanted() -> None:
    message = SamplingParams(num_logprobs=0).to_proto()
    assert SamplingParams.from_proto(message).num_logprobs == 0
    message.ClearField("num_logprobs")
    assert SamplingParams.from_proto(message).num_logprobs is None


@pytest.mark.parametrize(("name", "bounds"), [*FLOATS.items()])
@given(value=st.floats(allow_nan=True, allow_infinity=True) | st.floats(-3, 3) | st.floats(-101, 101))
def test_numbers_are_held_to_their_bounds(name: str, bounds: Bounds, value: float) -> None:
    if bounds.allow(value):
        assert getattr(make(**{name: value}), name) == value
    else:
        with pytest.raises(InvalidArgumentError, match=name):
            make(**{name: value})


@pytest.mark.parametrize(("name", "bounds"), [*FLOATS.items(), *INTEGERS.items()])
def test_the_bounds_themselves(name: str, bounds: Bounds) -> None:
    make(**{name: bounds.high})
    step = 1 if name in INTEGERS else 1e-6
    with pytest.raises(InvalidArgumentError, match=name):
        make(**{name: bounds.high + step})
    if bounds.low_is_outside:
        with pytest.raises(InvalidArgumentError, match=f"{name} is .* above 0 and at most"):
            make(**{name: bounds.low})
    else:
        make(**{name: bounds.low})
        with pytest.raises(InvalidArgumentError, match=f"{name} is .* between"):
            make(**{name: bounds.low - step})


def test_zero_temperature_is_greedy_and_a_denormal_one_is_refused() -> None:
    assert SamplingParams(temperature=0.0).is_greedy
    assert SamplingParams(temperature=-0.0).is_greedy
    with pytest.raises(InvalidArgumentError, match="temperature is 1e-40; it must be 0, or between 1e-05 and 100"):
        SamplingParams(temperature=1e-40)


@pytest.mark.parametrize("bias", [100.001, -100.001, math.nan, math.inf, -math.inf])
def test_biases_are_held_to_their_bounds(bias: float) -> None:
    with pytest.raises(InvalidArgumentError, match="logit_bias"):
        SamplingParams(logit_bias={1: 0.0, 2: bias})


def test_lists_are_bounded() -> None:
    for name in LISTS:
        make(**{name: tuple(range(MAX_LISTED_TOKEN_IDS))})
        with pytest.raises(InvalidArgumentError, match=f"{name} has 1025 entries"):
            make(**{name: tuple(range(MAX_LISTED_TOKEN_IDS + 1))})
    many: Mapping[int, float] = dict.fromkeys(range(MAX_LOGIT_BIAS_ENTRIES + 1), 1.0)
    with pytest.raises(InvalidArgumentError, match="logit_bias has 1025 entries"):
        SamplingParams(logit_bias=many)


@pytest.mark.parametrize("name", [*LISTS, "logit_bias"])
def test_token_ids_outside_the_vocabulary_are_refused(name: str) -> None:
    params = make(**{name: {9: 1.0, 10: 1.0} if name == "logit_bias" else (9, 10)})
    params.check_token_ids(11)
    with pytest.raises(InvalidArgumentError, match=f"{name} names a token id outside the vocabulary of 10"):
        params.check_token_ids(10)


@given(all_params())
def test_each_completion_has_a_seed_of_its_own_and_the_first_keeps_the_requests(params: SamplingParams) -> None:
    completions = [params.for_completion(index) for index in range(50)]
    assert completions[0] == params
    assert len({completion.seed for completion in completions}) == 50
    assert all(dataclasses.replace(completion, seed=params.seed) == params for completion in completions)


def test_rules_that_leave_nothing_are_refused_at_once() -> None:
    nothing = "allowed_token_ids leaves no token"
    with pytest.raises(InvalidArgumentError, match=nothing):
        SamplingParams(allowed_token_ids=(1, 2), banned_token_ids=(2, 1, 3)).check_token_ids(10)
    with pytest.raises(InvalidArgumentError, match=nothing):
        SamplingParams(allowed_token_ids=(1,), stop_token_ids=(1,), min_new_tokens=1).check_token_ids(10)
    SamplingParams(allowed_token_ids=(1,), stop_token_ids=(1,)).check_token_ids(10)
    SamplingParams(allowed_token_ids=(1, 2), banned_token_ids=(1,)).check_token_ids(10)
