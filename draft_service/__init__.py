"""The draft service: proposes tokens."""
