for x in data:
    loss = model(x).mean()
    # the teacher follows
    update(teacher, model)  # WRITE
    opt.zero_grad()
    loss.backward()  # BACKWARD
    opt.step()
