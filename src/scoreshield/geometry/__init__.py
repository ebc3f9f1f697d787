"""The sets of valid cosine objects and the projections onto them."""
