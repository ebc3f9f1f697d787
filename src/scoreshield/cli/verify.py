def verify_command() -> None:
    """x."""
