"""What is said beside a red verdict: where two arms part first, how far apart they are."""
