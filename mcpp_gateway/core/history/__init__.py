"""Reading back: queries for entries of the log, their evaluation, and the pages of the answer."""
