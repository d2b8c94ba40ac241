"""From a verdict to a proven fix: rewrite the source, prove the rewrite, apply it."""
