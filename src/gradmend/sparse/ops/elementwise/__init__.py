"""Entry by entry: functions of one tensor, of two, comparisons, losses."""
