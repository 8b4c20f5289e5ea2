"""Experiments that go beyond the papers: `python benchmarks/reproduce.py NAME`."""
