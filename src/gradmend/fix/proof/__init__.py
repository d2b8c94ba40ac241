"""Proof: run the program as it was meant and as it was edited, and compare every loss and gradient."""
