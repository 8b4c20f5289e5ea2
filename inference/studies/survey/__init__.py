"""Who wins at which size: a program grown along rows, columns and latents."""
