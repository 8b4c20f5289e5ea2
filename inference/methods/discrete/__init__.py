"""Latents with a table of states: exact, truncated and stepwise EM."""
