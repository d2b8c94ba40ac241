"""The user's files: text, syntax tree, candidates for an edit, and the facts that they are made from."""
