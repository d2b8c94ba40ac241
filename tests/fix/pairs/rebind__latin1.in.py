# -*- coding: latin-1 -*-
def vorwärts(größe, süß="é"):
    größe.add_(1)  # WRITE übernächste
    return größe
