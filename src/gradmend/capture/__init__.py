"""A running program becomes a ledger of Saves and Writes."""

from gradmend.capture.native import loading as loading  # first of all: it decides which form the others take
