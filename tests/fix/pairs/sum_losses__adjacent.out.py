for x in data:
    a, b = f(x)
    if a > 0:
        # the first
        # then
        # BACKWARD # WRITE
        (a + b + (a * b)).backward()
        c = g(x)
        c.backward()
    opt.step()
