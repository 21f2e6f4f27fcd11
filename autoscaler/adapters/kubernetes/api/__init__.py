"""The API server: requests, the fields that are read, and list and watch."""
