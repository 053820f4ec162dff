"""Traces and metrics: the table of names, the set-up, and what the services use to emit."""
