"""The routes of ``optimize``: functions, each of which answers one kind of question."""
