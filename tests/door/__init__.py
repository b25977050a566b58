"""The door, with clients of other makers."""
