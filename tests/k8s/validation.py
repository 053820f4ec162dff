"""Whether documents are what Kubernetes takes, by its own schemas and without fields that it does not know."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator

import kubernetes_validate
from kubernetes_validate import utils

from tests.k8s import custom_kinds
from tests.k8s.rendering import Document

VERSIONS = ("1.32", "1.37")
CUSTOM_GROUPS = ("cert-manager.io/",)
"""Of resources that Kubernetes itself does not know."""


def validation_problems(documents: Iterable[Document], version: str) -> Iterator[str]:
    """One sentence for each document that is not valid; equal ones are looked at once."""
    different = {json.dumps(document, sort_keys=True): document for document in documents}
    read = utils.schema_contents
    # It would read megabytes of schemas for each document.
    utils.schema_contents = functools.cache(read)
    try:
        for document in different.values():
            if document["apiVersion"].startswith(CUSTOM_GROUPS):
                continue
            if document["apiVersion"].startswith(custom_kinds.GROUP):
                yield from custom_kinds.custom_problems(document)
                continue
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                yield f"{document['kind']} {document['metadata']['name']} (Kubernetes {version}): {error.message}"
    finally:
        utils.schema_contents = read
