"""Refusals: what a service says of a request that it will not or cannot carry out.

One exception class a status code. The message is one sentence for the person who must change something; it names the
field and the bound, never a prompt or a token. What is not a `Refusal` is a bug and becomes INTERNAL.
"""

import math

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

_MAX_RETRY_SECONDS = 3600.0
_MAX_MESSAGE_CHARACTERS = 500
"""Of what a service says; more than that is no sentence."""


class Refusal(Exception):
    """Base class; `code` is the gRPC status code it becomes, in a call's status or in-band.

    Args:
        message: one sentence.
        retry_seconds: when the same request may well succeed, as far as the service can tell; None: it cannot.
    """

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds

    def to_status(self) -> status_pb2.Status:
        """The refusal as a google.rpc.Status, with a google.rpc.RetryInfo if it says when to try again."""
        number: int = self.code.value[0]
        status = status_pb2.Status(code=number, message=str(self))
        if self.retry_seconds is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(math.ceil(1000 * self.retry_seconds))
            status.details.add().Pack(retry)
        return status


class InvalidArgumentError(Refusal):
    """The request is wrong whatever the state of the service."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class OutOfRangeError(Refusal):
    """The request goes past the end of the model's context."""

    code = grpc.StatusCode.OUT_OF_RANGE


class FailedPreconditionError(Refusal):
    """The request does not fit the state of the service: unknown sequence, stale round, other prefix."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class ResourceExhaustedError(Refusal):
    """The service is full; the same request may succeed later."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnavailableError(Refusal):
    """The service is not ready or going away; another replica may do it."""

    code = grpc.StatusCode.UNAVAILABLE


class DataLossError(Refusal):
    """What was computed is of no use, such as logits that are no numbers: the model or its device is at fault."""

    code = grpc.StatusCode.DATA_LOSS


class UnimplementedError(Refusal):
    """The request asks for something that this server does not do; it is never done silently in another way."""

    code = grpc.StatusCode.UNIMPLEMENTED


class UnauthenticatedError(Refusal):
    """Nobody knows who asks. The message never says whether something was missing or wrong."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(Refusal):
    """It is known who asks, and they may not."""

    code = grpc.StatusCode.PERMISSION_DENIED


_BY_CODE: dict[int, type[Refusal]] = {
    refusal.code.value[0]: refusal
    for refusal in (
        InvalidArgumentError,
        OutOfRangeError,
        FailedPreconditionError,
        ResourceExhaustedError,
        UnavailableError,
        DataLossError,
        UnimplementedError,
        UnauthenticatedError,
        PermissionDeniedError,
    )
}


def from_status(status: status_pb2.Status) -> Refusal:
    """The refusal that an in-band status stands for; codes no service sends on purpose become a plain `Refusal`."""
    return _BY_CODE.get(status.code, Refusal)(status.message[:_MAX_MESSAGE_CHARACTERS], _retry_seconds(status))


def _retry_seconds(status: status_pb2.Status) -> float | None:
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Is(retry.DESCRIPTOR):
            try:
                detail.Unpack(retry)
            except DecodeError:
                return None
            seconds: float = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
            return min(max(seconds, 0.0), _MAX_RETRY_SECONDS)
    return None
