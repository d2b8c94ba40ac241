"""What is wrong with a program, and which edits to try for it."""
