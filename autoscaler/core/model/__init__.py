"""What the tick is told and what it says: the fleet, the readings, the policies, the decision."""
