"""What is wrong with certificates, secrets, and settings about them."""


class SecurityError(Exception):
    """It cannot be had safely, or not as the files are; one sentence for the operator, without a secret in it."""
