"""Words of others, made fit to be shown."""

_MAX_CHARACTERS = 200


def printable(text: str) -> str:
    """The same without what would move a terminal's cursor or change its colours, and not too long of it."""
    if text.isprintable() and len(text) <= _MAX_CHARACTERS:
        return text
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return shown if len(shown) <= _MAX_CHARACTERS else shown[: _MAX_CHARACTERS - 1] + "…"
