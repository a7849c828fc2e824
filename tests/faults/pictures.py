"""Small pictures without a library."""
import struct
import zlib
from pathlib import Path


def write_grey_png(path, width, height):
    """A bright square on a dark ground; gives the path."""
    def bright(x, y):
        return width // 3 < x < 2 * width // 3 and height // 3 < y < 2 * height // 3

    rows = b"".join(b"\0" + bytes(220 if bright(x, y) else 40 for x in range(width)) for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path = Path(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return path
