"""What people write: policies, schedules, process settings, and the tables of metric names."""
