"""The commands, one file each: parse, call, print. Rooms: to plan, for files, to train."""
