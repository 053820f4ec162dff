"""Whose request it is, as far as the token file settles that."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.errors import PermissionDeniedError
from specdec.serving.token_file import TokenEntry
from specdec.v1 import generation_pb2


def bind_tenant(request: object, entry: TokenEntry, entries: Sequence[TokenEntry]) -> None:
    """Enter the tenant of the token into a request that names none.

    Args:
        request: of one of the methods of the generation service; others are left alone.
        entry: of the token that came with it.
        entries: all of the file.

    Raises:
        PermissionDeniedError: it names another tenant than the token's, or one that only other tokens may name.
    """
    asked = request.request if isinstance(request, generation_pb2.GenerateUnaryRequest) else request
    if not isinstance(asked, generation_pb2.GenerateRequest):
        return
    if entry.tenant and not asked.tenant:
        asked.tenant = entry.tenant
    if asked.tenant == entry.tenant:
        return
    if entry.tenant or any(asked.tenant == other.tenant for other in entries):
        raise PermissionDeniedError("tenant is one that this token may not name; leave it empty")
