"""Training a draft model for any target, from text that the target writes itself."""
