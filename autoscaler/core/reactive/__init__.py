"""The reactive recommender: replicas from queues, rates and latencies as they are now."""
