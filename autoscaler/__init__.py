"""vllm-autoscaler: how many replicas each LLM inference Deployment should have, and making it so."""
