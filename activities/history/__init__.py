"""What earlier incidents left in Temporal."""
