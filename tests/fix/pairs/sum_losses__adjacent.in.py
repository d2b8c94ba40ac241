for x in data:
    a, b = f(x)
    if a > 0:
        a.backward(retain_graph=True)  # the first
        # then
        b.backward()  # BACKWARD # WRITE
        (a * b).backward()
        c = g(x)
        c.backward()
    opt.step()
