"""KEDA's gRPC contract: the proto file and the modules generated from it. Only the proto file is written by hand."""
