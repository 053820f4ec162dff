"""Structured random messages: any protobuf message filled with what hurts, and good ones with something wrong.

Not hypothesis: tens of thousands of messages have a minute, and one of its strategies takes milliseconds for a message.
What it would add is shrinking; here one number replays a run.
"""

from __future__ import annotations

import math
import random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

MessageT = TypeVar("MessageT", bound=Message)

_UNSIGNED = (0, 1, 2, 3, 7, 15, 16, 17, 255, 319, 320, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_SIGNED = (0, 1, 2, -1, -2, 15, 319, -(1 << 31), (1 << 31) - 1)
_LONG = (0, 1, (1 << 32), (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_REAL = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-5, 1e-30, 1e30, 2.0, 100.0, math.nan, math.inf, -math.inf)
_TEXT = ("", "a", "user", "Hello, world", "\0", "é日🔥", "{{ x }}", "../" * 9, "\u202e\ufffd", "00-" + "f" * 52)
_COUNTS = (0, 0, 1, 1, 2, 3, 8, 17, 33)
_HUGE_COUNTS = (257, 1025, 5000)
_KEPT = 0.6
"""Chance that a field of a random message is set."""


class RandomMessages:
    """Makes messages by a seed.

    Args:
        rng: all randomness comes from it.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def message(self, kind: type[MessageT]) -> MessageT:
        """A message of a kind with any content."""
        message = kind()
        self._fill(message, depth=0)
        return message

    def spoilt(self, message: MessageT) -> MessageT:
        """A copy with one to three things wrong with it."""
        copy = type(message)()
        copy.CopyFrom(message)
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            if self._rng.random() < 0.15:
                copy = self._flipped(copy)
            else:
                self._spoil(copy)
        return copy

    def junk(self) -> bytes:
        """Bytes that are no message, most likely."""
        return self._rng.randbytes(self._rng.choice((1, 2, 3, 16, 100, 5000)))

    def _flipped(self, message: MessageT) -> MessageT:
        """Some bits of what travels are changed, as far as it is still a message."""
        data = bytearray(message.SerializeToString())
        for _ in range(self._rng.randint(1, 4)):
            if data:
                data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        changed = type(message)()
        try:
            changed.ParseFromString(bytes(data))
        except DecodeError:
            return message
        return changed

    def _spoil(self, message: Message) -> None:
        fields: list[Any] = [field for field, _ in message.ListFields()] or list(message.DESCRIPTOR.fields)
        if not fields:
            return
        # The deeper, the more there is to spoil.
        field = self._rng.choice(fields)
        value = getattr(message, field.name)
        nested = isinstance(value, Message)
        if nested and self._rng.random() < 0.85:
            self._spoil(value)
        elif field.is_repeated and len(value) and not _is_map(field) and self._rng.random() < 0.8:
            self._spoil_list(field, value)
        else:
            if self._rng.random() < 0.2:
                field = self._rng.choice(message.DESCRIPTOR.fields)
            message.ClearField(field.name)
            if self._rng.random() < 0.8:
                self._set(message, field, depth=1)

    def _spoil_list(self, field: Any, values: Any) -> None:
        index = self._rng.randrange(len(values))
        way = self._rng.choice((0, 1, 2, 2, 2, 3, 3))
        if way == 0:
            del values[index:]
        elif way == 1:
            values.extend(list(values)[: self._rng.choice((1, 2, 40))])
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            self._spoil(values[index])
        elif way == 2:
            values[index] = self._scalar(field)
        else:
            values[index] = values[0]

    def _fill(self, message: Message, depth: int) -> None:
        oneofs: list[Any] = list(message.DESCRIPTOR.oneofs)
        chosen: dict[str, str] = {oneof.name: self._rng.choice(list(oneof.fields)).name for oneof in oneofs}
        for each in message.DESCRIPTOR.fields:
            field: Any = each
            oneof = field.containing_oneof
            if oneof is not None and len(oneof.fields) > 1 and chosen[oneof.name] != field.name:
                continue
            if self._rng.random() < _KEPT:
                self._set(message, field, depth)

    def _set(self, message: Message, field: Any, depth: int) -> None:
        value = getattr(message, field.name)
        if field.message_type is not None and _is_map(field):
            key, item = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for _ in range(self._count()):
                value[self._scalar(key)] = self._scalar(item)
        elif field.is_repeated and field.type == FieldDescriptor.TYPE_MESSAGE:
            for _ in range(self._rng.choice(_COUNTS) if depth < 3 else 0):
                self._fill(value.add(), depth + 1)
        elif field.is_repeated:
            low = field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 and self._rng.random() < 0.7
            value.extend(self._rng.randrange(320) if low else self._scalar(field) for _ in range(self._count()))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            value.SetInParent()
            self._fill(value, depth + 1)
        else:
            setattr(message, field.name, self._scalar(field))

    def _count(self) -> int:
        return self._rng.choice(_HUGE_COUNTS if self._rng.random() < 0.03 else _COUNTS)

    def _scalar(self, field: Any) -> Any:
        rng = self._rng
        if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
            value = rng.choice(_REAL) if rng.random() < 0.7 else rng.uniform(-3, 3)
            return min(max(value, -3e38), 3e38) if math.isfinite(value) else value
        if field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32):
            return rng.choice(_UNSIGNED) if rng.random() < 0.7 else rng.randrange(64)
        if field.type in (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_INT32):
            return rng.choice(_SIGNED) if rng.random() < 0.7 else rng.randrange(-4, 64)
        if field.type == FieldDescriptor.TYPE_ENUM:
            return rng.choice((0, 1, 2, 3, 4, 99, (1 << 31) - 1))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 15, 16, 17, 32, 33, 64, 65, 1000)))
        if field.type == FieldDescriptor.TYPE_STRING:
            return rng.choice(_TEXT) * rng.choice((1, 1, 1, 1, 300))
        signed = field.type in (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64)
        return rng.choice(_LONG[:4] if signed else _LONG)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
