"""NUTS, NumPyro's own Gibbs and SVI on the same programs: what the methods are compared with."""
