"""Products: with dense operands, with sparse ones, sampled, message passing, einsum, solves."""
