"""Every expression is lowered to a flat program over arrays, run by NumPy or compiled kernels.

program = lower([(col("x") + 1).value], schema).program   # dml/expr/columns/typing.py
interpreter.run(program, [Vec(np.arange(3))], 3).outputs  # NumPy, one operation at a time
KernelTiers(directory).run(program, [Vec(np.arange(3))], 3)  # compiled kernels, once that pays
"""
