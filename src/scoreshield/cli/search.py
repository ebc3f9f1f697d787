def search_command() -> None:
    """x."""
