"""What bench, quality and report share: the endpoint under test and the conditions of a result."""
