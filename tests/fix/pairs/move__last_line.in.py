a.backward()
opt.step()  # WRITE
b.backward()  # BACKWARD