"""Which of the papers' programs a program is, and what the sites of a program hold."""
