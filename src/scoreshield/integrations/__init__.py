"""Adapters for frameworks that people use. Each module needs its own extra and is imported only by name."""
