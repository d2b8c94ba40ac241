"""Trial runs: the processes, what they may reach, and what they record."""
