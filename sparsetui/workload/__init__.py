"""What is investigated: the workload file, typed, and the drills."""
