"""The book's figures: one module per concept, one function per figure, which returns the figure."""
