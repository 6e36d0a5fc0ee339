"""NumPy's .npy and .npz files are read and written here."""
