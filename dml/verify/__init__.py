"""Check runs on samples: compare rows of the plan as written with those of the chosen plan.

For example::

    found = scope(naive, chosen)  # scope.py: the parts of the two plans that can be compared
    guard = Guard(found, samples, most_bytes, compute, fallback, report)  # guard.py: checks a run
    status, text = replay(folder)  # replay.py: recomputes a reported difference with both plans
"""
