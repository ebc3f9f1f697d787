"""Random bits, and exact draws from them: rounded Gaussian and Laplace noise, coins, choices, points on a sphere."""
