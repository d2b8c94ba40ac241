"""Dimensions summed up: sums, extremes, norms, softmax, running sums."""
