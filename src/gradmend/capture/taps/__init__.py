"""Taps: the ways a Python program can write to a tensor, each wrapped so that the ledger hears of it.

schemas   what torch's own op schemas say is written
elements  index and mask writes, by element
homes     where the names live that a program reaches these ops by
special   writes that no schema tells: `.data =`, storages, running statistics, collectives, escapes
switch    arming and disarming: every patched name goes back as it was
"""
