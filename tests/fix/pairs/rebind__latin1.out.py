# -*- coding: latin-1 -*-
def vorwärts(größe, süß="é"):
    größe = größe.add(1)  # WRITE übernächste
    return größe
