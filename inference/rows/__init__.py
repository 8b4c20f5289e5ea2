"""Where rows are (in memory, on disk, on several devices) and how they are summed."""
