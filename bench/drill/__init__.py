"""The drill: the same disasters for several queues, and one table of what became of the messages.

`python -m bench.drill` from the root of the project. A drill is a pure definition (`drills.py`), each
system has an adapter (`systems/`), and all figures are computed from the lines that the tasks append to
a journal and from what the system itself says about failed and waiting messages.
"""
