"""Mathematics that knows no program: nothing here has heard of a site or a plate."""
