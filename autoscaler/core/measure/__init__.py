"""What a workload shows of itself: the speed of a replica, the offered load, and how many requests miss at a load."""
