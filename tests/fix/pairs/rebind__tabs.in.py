def forward(x, y):
	if y is not None:
		x += y	# WRITE tabs stay
	else: x.neg_()  # WRITE one line
	for _ in range(2): x *= 2; x -= 1  # WRITE two on a line, the first
	return x
