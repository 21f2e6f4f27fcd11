"""Other autoscalers of a scale target: HorizontalPodAutoscalers and KEDA's ScaledObjects."""
