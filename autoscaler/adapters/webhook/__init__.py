"""The mutating webhook: pods of namespaces that opt in prefer nodes that hold their weights, and start from them."""
