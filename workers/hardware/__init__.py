"""The report on hardware that incidents repaired again and again."""
