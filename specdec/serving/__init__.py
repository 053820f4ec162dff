"""What every service process stands on: listening, health, draining, channels and refusals."""
