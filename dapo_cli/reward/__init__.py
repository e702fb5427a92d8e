"""Judging responses: answer extraction, equality, score, and the overlong penalty beside it."""
