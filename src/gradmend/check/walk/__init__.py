"""The abstract run: a program is walked through as Python would run it, with values of which only what matters is known."""
