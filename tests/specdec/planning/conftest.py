"""Examples here take as long as the machine lets them: its load is no finding."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
