"""What releases cost: events, accountants, calibration."""
