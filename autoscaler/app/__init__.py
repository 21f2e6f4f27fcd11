"""What the process is made of: the wiring of each command, its log, its start and end."""
