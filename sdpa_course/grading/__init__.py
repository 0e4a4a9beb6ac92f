"""The engine that grades: it knows no exercise.

An answer comes in at :mod:`.answers`; :mod:`.grade` compares it to the reference; :mod:`.diagnose`
finds the faults that reproduce it; :mod:`.report` shows what was found. :mod:`.audit` grades the
grader. What a learner calls is in :mod:`.face`.
"""
