"""Adapters for the frameworks people use: each module is imported only when asked for, and brings its own extra."""
