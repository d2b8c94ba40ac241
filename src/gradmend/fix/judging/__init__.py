"""Who judges an edited program, and what it says."""
