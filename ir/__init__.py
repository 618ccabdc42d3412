"""What flows between the parts of pipeloom: profile, problem, schedule and program."""
