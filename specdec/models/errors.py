"""Why a model cannot be served."""


class ModelError(Exception):
    """The message is one sentence for the person who chose the model; it says what to do."""


def first_line(error: Exception) -> str:
    """What a library has to say, short enough to stand inside a sentence."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
