"""`report`: what the counts of a team's services cost, what they missed, and what other counts would have."""
