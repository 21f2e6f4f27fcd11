"""The scaling rules that people run today, as they write them: ScaledObjects, HPAs, Knative annotations."""
