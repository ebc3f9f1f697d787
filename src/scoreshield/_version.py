"""The version of this package, where a command can read it without the metadata of the installation."""

VERSION = "0.1.0"
