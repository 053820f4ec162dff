"""Drafting ahead: continuations for what is likely to become of a window, made while it is verified."""
