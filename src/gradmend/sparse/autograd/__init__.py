"""Gradients on patterns and plain tensors: the primitives, and what is made of them. Knows no SparseTensor."""
