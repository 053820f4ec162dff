from __future__ import annotations

import grpc
import pytest
from google.rpc import status_pb2

from specdec import errors
from specdec.errors import Refusal, from_status

CLASSES = [
    (errors.InvalidArgumentError, grpc.StatusCode.INVALID_ARGUMENT, 3),
    (errors.OutOfRangeError, grpc.StatusCode.OUT_OF_RANGE, 11),
    (errors.FailedPreconditionError, grpc.StatusCode.FAILED_PRECONDITION, 9),
    (errors.ResourceExhaustedError, grpc.StatusCode.RESOURCE_EXHAUSTED, 8),
    (errors.UnavailableError, grpc.StatusCode.UNAVAILABLE, 14),
    (errors.DataLossError, grpc.StatusCode.DATA_LOSS, 15),
    (errors.UnimplementedError, grpc.StatusCode.UNIMPLEMENTED, 12),
    (errors.UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED, 16),
    (errors.PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED, 7),
]


@pytest.mark.parametrize(("refusal", "code", "number"), CLASSES)
def test_over_the_wire_and_back(refusal: type[Refusal], code: grpc.StatusCode, number: int) -> None:
    assert refusal.code is code
    status = status_pb2.Status.FromString(
        refusal("max_length is 0; it must be above 0").to_status().SerializeToString()
    )
    assert (status.code, status.message) == (number, "max_length is 0; it must be above 0")
    read = from_status(status)
    assert type(read) is refusal
    assert str(read) == "max_length is 0; it must be above 0"
    assert read.retry_seconds is None


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, 0.0), (0.0021, 0.003), (1.5, 1.5), (90.0, 90.0), (1e9, 3600.0)]
)
def test_when_to_try_again_goes_over_the_wire(seconds: float, expected: float) -> None:
    status = status_pb2.Status.FromString(
        errors.ResourceExhaustedError("it is full", seconds).to_status().SerializeToString()
    )
    assert from_status(status).retry_seconds == pytest.approx(expected)


def test_details_of_other_kinds_and_damaged_ones_say_nothing() -> None:
    status = errors.ResourceExhaustedError("it is full", 2.0).to_status()
    for type_url, value in (("type.googleapis.com/google.rpc.Help", b""), (status.details[0].type_url, b"\xff")):
        status.details[0].type_url, status.details[0].value = type_url, value
        assert from_status(status).retry_seconds is None
    status = errors.ResourceExhaustedError("it is full", -5.0).to_status()
    assert from_status(status).retry_seconds == 0.0


def test_every_class_is_listed_here_and_read_back() -> None:
    assert {refusal for refusal, *_ in CLASSES} == set(Refusal.__subclasses__())


@pytest.mark.parametrize("number", [0, 1, 2, 5, 13, 99, -1])
def test_codes_that_no_service_sends_on_purpose_are_internal(number: int) -> None:
    read = from_status(status_pb2.Status(code=number, message="boom"))
    assert type(read) is Refusal
    assert read.code is grpc.StatusCode.INTERNAL
    assert str(read) == "boom"


def test_what_a_service_says_is_cut_to_a_sentence() -> None:
    assert len(str(from_status(status_pb2.Status(code=9, message="a" * 1_000_000)))) == 500
