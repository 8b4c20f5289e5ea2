"""Every method that applies, on one program and one table, judged alike."""
