"""The HTTP side of the daemon: health, metrics, API, page. Read-only."""
