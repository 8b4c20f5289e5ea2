"""Whether a Bayesian method's intervals hold what they say: simulation-based calibration."""
