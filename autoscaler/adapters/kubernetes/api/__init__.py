"""The API server: requests, the objects that are read, and list and watch."""
