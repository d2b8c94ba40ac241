"""Every operation, by subject. Importing a module registers what it implements in the dispatch table."""
