"""Comparisons: policies beside each other and beside the bound, made from many replays."""
