"""Devices that are not there: the clock of forward passes is padded, the rest is real."""
