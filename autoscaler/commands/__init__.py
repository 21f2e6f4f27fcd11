"""Parts of the command line: the options that commands share, and commands that would crowd cli.py."""
