"""What an operator sees of the daemon over HTTP: health, metrics, the API, the page. It shows; it changes nothing."""
