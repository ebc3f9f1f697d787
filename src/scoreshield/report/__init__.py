"""Pictures of a release, for people."""
