"""The optimizer turns a written pipeline into a plan: normal form, rules, costs, arrangement.

stations = phases.optimize(node, seed=0)   # written, normalized, chosen, plan and trace
stations.plan                              # a physical.plan.Plan
stations.trace.names()                     # the rules that fired, in order
"""
