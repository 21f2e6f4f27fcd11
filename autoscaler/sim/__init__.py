"""Simulated vLLM: `engine` is one replica; `world` is the demo, `study` one trace replayed, `proof` many studies."""
