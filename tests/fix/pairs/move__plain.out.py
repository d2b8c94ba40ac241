for x in data:
    loss = model(x).mean()
    opt.zero_grad()
    loss.backward()  # BACKWARD
    # the teacher follows
    update(teacher, model)  # WRITE
    opt.step()
