"""The commands, one file each, which parse options, call the library and print. Folders: planning,
files, training."""
