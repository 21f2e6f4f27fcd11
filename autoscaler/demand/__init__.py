"""The model of demand: seven inputs, four answers, and a draft of the policy that follows from them."""
