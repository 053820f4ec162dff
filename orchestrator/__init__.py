"""The orchestrator: runs the rounds between draft and target and streams the text. No torch here."""
