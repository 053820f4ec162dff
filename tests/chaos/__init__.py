"""Breaks running services at random while they are used, and compares every output with the undisturbed one."""
