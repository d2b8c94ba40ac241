"""What the operations share: dimensions by kind, dense operands met at the entries, entries moved about."""
