"""The posterior of the parameters of any program, from a fit of it."""
