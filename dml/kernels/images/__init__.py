"""Images are decoded, resampled and coloured here, in integer arithmetic, row by row.

pixels = Pixels(codec.decode(encoded, "RGB", codec.MOST_PIXELS))
pixels.crop(10, 10, 200, 200).resize(Resize(224, 224, "bilinear"))
array = pixels.array()                       # (224, 224, 3) uint8, with the bytes of Pillow
"""
