"""The pipeloom command, one file a subcommand."""
