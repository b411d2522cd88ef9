"""Tools: functions that the policy may call."""
