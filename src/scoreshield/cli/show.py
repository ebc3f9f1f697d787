def show_command() -> None:
    """x."""
