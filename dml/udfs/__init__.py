"""Users' functions are fingerprinted, proven pure, lifted to expressions, or called for rows.

fn = user_function(lambda row: {"y": row["x"] + 1}, "map", nonce, None)   # digest and purity
lifted = lift(fn.call, schema)   # expressions, or the reason why not
call_each(fn, block, out)        # else one call per row
"""
