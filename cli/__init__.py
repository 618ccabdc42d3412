"""The ``pipeloom`` command, with one file per subcommand."""
