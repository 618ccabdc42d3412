"""The passes of the compiler. Each turns a valid program into another valid program."""
