"""The contract between the optimizer and the executor: a plan of stages, as immutable values.

plan = plan_of(node, fingerprint)   # made by dml/optimize/lowering.py
plan.stage.steps                    # operators that run on blocks, in any worker
plan.stream                         # operators that read the ordered stream
"""
