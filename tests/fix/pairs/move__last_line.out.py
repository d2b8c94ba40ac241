a.backward()
b.backward()  # BACKWARD
opt.step()  # WRITE
