"""Huge pages for weights and caches: reading them is mostly a matter of how fast memory is found."""

import os

_VARIABLE = "THP_MEM_ALLOC_ENABLE"


def ask_for_huge_pages() -> None:
    """Have PyTorch ask the kernel for huge pages under tensors of 2 MB and more, unless the environment says otherwise.

    PyTorch reads its variable once, when it first makes a tensor: call this before it is imported. Where the kernel
    gives none, nothing changes.
    """
    os.environ.setdefault(_VARIABLE, "1")
