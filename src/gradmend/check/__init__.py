"""The static road to the rules: source in, findings out. Stdlib `ast` only; nothing here imports torch."""
