"""What a release is worth: decisions, risk bounds, plans."""
