"""What differs between releases of torch, one file a subject; and the canaries that try what we rely on."""
