"""KEDA: the external scaler that it calls over gRPC, and the validation of ScaledObjects that use it."""
