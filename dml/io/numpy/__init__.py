"""NumPy's .npy and .npz files: arrays and structured arrays as rows."""
