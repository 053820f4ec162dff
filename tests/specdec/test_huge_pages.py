"""The services ask for huge pages before PyTorch could have read that nobody did."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from specdec.huge_pages import ask_for_huge_pages

VARIABLE = "THP_MEM_ALLOC_ENABLE"


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    ask_for_huge_pages()
    assert os.environ[VARIABLE] == "0"
    monkeypatch.delenv(VARIABLE)
    ask_for_huge_pages()
    assert os.environ[VARIABLE] == "1"


@pytest.mark.parametrize("service", ["target_service", "draft_service"])
def test_a_service_asks_before_it_imports_pytorch(service: str) -> None:
    program = f"""
import sys, types
import {service}.__main__ as main
assert "torch" not in sys.modules
class Stop(Exception): pass
def stop():
    assert "torch" not in sys.modules
    raise Stop
main.ask_for_huge_pages = stop
sys.argv[1:] = []
try:
    main.main()
except Stop:
    print("asked")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("asked\n", 0), done.stderr
