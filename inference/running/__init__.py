"""What a method is, and the one loop that runs them all: read `contract` first."""
