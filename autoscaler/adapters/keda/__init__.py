"""KEDA: the external scaler that it asks over gRPC, and the check of the ScaledObjects that name it."""
