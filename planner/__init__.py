"""The library above solver and compiler: what the command line can, Python can. No torch."""
