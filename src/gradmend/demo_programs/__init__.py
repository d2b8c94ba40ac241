"""Small programs with broken gradients, as people write them. `gradmend demo` runs them."""
