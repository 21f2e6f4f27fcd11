"""Devices that drivers publish for dynamic resource allocation (DRA), and the claims that pods have on them."""
