"""What several test modules share."""

#: Two-sided Gaussian quantile whose false-alarm rate is 1e-7: one in ten million for each such comparison.
STRICT = 5.33
