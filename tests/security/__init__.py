"""What is promised about security, one promise a test."""
