x = x.relu()  # WRITE
print(x, "日本")
