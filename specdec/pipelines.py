"""How far rounds of a request overlap. A module of its own, so that the command line can have it quickly."""

from typing import Literal

PipelineSetting = Literal["off", "ahead", "candidates", "auto"]
"""ahead: the draft service drafts while a window is verified; candidates: and the target has these drafts before its
verdict; auto: what is measured to be worth it."""
