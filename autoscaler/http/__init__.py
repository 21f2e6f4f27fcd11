"""HTTP for all rooms that serve or read it: a listening port, bounded answers, certificates and tokens from files."""
