"""What a program is, and what a reading makes of it.

Read `handlers` first (what a reading is), then `anatomy` (what it looks at) and `reader` (the forms
of a log joint that make it fast).
"""
