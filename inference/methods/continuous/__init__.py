"""Gaussian latents: EM by a bound, by quadrature and by draws."""
