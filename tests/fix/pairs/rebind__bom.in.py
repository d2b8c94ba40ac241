x.relu_()  # WRITE
print(x, "日本")
