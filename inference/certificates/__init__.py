"""Proved brackets of the evidence: tangents of concave log joints, over boxes of states."""
