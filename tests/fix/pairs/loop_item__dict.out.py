for name, value in feats.items():
    feats[name] = value * 0.5  # WRITE
