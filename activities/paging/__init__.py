"""Calling a person: an alert in Alertmanager, and an Event on the Node."""
