"""Plans are run here: scheduling core, tasks, drivers of this host, memory, delivery in order.

stream = Streaming(plan, at, open, target_bytes, tallies)  # streams/stream.py; open is a driver
block = stream.flow(epoch, None).pull(8192)  # up to 8192 rows or one batch, in order; None: end
for batch in Elements(stream, epoch, report): ...  # delivery/iterator.py; report is an Account
"""
