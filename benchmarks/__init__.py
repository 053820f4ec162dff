"""Benchmarks: measured claims, each a command. They run as the services do."""

from specdec.huge_pages import ask_for_huge_pages

ask_for_huge_pages()
