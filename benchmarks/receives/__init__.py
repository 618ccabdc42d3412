"""How early to post receives: time lost when ops take longer than planned, against buffers."""
