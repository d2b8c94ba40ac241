for t in range(1, days):
    s, i = state[t - 1]  # rows of the day before
    state[t, 0] = s * rate
    state[t, 1] = i + s  # WRITE
