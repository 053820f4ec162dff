"""How a token is chosen: parameters, logits processors, and the noise that draft and target share."""
