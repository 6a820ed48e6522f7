"""A record on its way: begun, between turns, resumed."""
