"""Why a model cannot be served."""


class ModelError(Exception):
    """The message is one sentence for the person who chose the model; it says what to do."""
